"""Delta commits on S3 when responses get lost: the rows of each commit are in the table exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers import slow_requests
from headrace_connectors.lakehouse.committers.base import Commit, CommitOutcomeUnknownError, TableConflictError
from support import s3, s3_faults
from support.lakehouse_committers import (
    Combination,
    append,
    delta_s3,
    identity,
    numbers,
    offsets,
    open_new,
    rows,
    s3_access,
)
from support.s3_faults import FaultyS3, S3Fault

pytestmark = pytest.mark.integration

T0 = [("t", 0)]
APPLIED = {
    "504": S3Fault(lambda *_: False, 1, status=504, code="GatewayTimeout", applies_request=True),
    "500": S3Fault(lambda *_: False, 1, status=500, code="InternalError", applies_request=True),
    "dropped connection": S3Fault(lambda *_: False, 1, cuts_request=True, applies_request=True),
    "truncated response": S3Fault(lambda *_: False, 1, cuts_response_at=0),
}


def is_commit(method: str, path: str) -> bool:
    return method == "PUT" and "/_delta_log/" in path


@pytest.fixture(scope="module")
def server() -> Iterator[s3.S3Server]:
    with s3.running() as running:
        yield running


@pytest.fixture
def proxy(server: s3.S3Server) -> Iterator[FaultyS3]:
    with s3_faults.faulty(server) as running:
        yield running


@pytest.fixture
def table(server: s3.S3Server, proxy: FaultyS3, tmp_path: Path) -> Combination:
    return delta_s3(server, tmp_path.name, proxy.server)


@pytest.mark.parametrize("is_first", [True, False], ids=["first commit", "later commit"])
@pytest.mark.parametrize("fault", APPLIED)
def test_commit_whose_response_is_lost_is_found_in_the_table(
    fault: str, is_first: bool, table: Combination, proxy: FaultyS3
) -> None:
    committer = open_new(table)
    before = 0 if is_first else 1
    if not is_first:
        append(table, committer, 0, [1], offsets(t=1))
    lost = APPLIED[fault]
    proxy.add(S3Fault(is_commit, 1, lost.status, lost.code, 0.0, lost.cuts_request, lost.applies_request,
                      lost.cuts_response_at))  # fmt: skip
    append(table, committer, 1, [2], offsets(t=before + 1))
    assert proxy.applied == 1
    append(table, committer, 2, [3], offsets(t=before + 2))
    assert numbers(table.read("t")) == ([2, 3] if is_first else [1, 2, 3])
    assert table.make("t", "sink").load(T0) == offsets(t=before + 2)


@pytest.mark.slow
def test_commit_is_tried_again_if_the_server_was_unavailable_and_has_not_applied_it(
    table: Combination, proxy: FaultyS3
) -> None:
    committer = open_new(table)
    append(table, committer, 0, [1], offsets(t=1))
    proxy.add(S3Fault(is_commit, 11, status=503, code="SlowDown"))  # delta-rs gives up after 11 requests
    append(table, committer, 1, [2], offsets(t=2))
    assert proxy.applied == 11
    assert numbers(table.read("t")) == [1, 2]


def test_files_are_kept_if_the_result_of_the_commit_is_unknown(table: Combination, proxy: FaultyS3) -> None:
    committer = open_new(table)
    append(table, committer, 0, [1], offsets(t=1))
    file = table.write(committer, rows(2), "b.parquet")
    proxy.add(S3Fault(is_commit, 1, cuts_response_at=0))
    cannot_read = S3Fault(
        lambda method, _: method == "GET" and proxy.applied > 0, 1000, status=403, code="AccessDenied"
    )
    proxy.add(cannot_read)
    with pytest.raises(CommitOutcomeUnknownError, match=r"the table cannot be read now .*403 Forbidden"):
        committer.commit(Commit(identity(1), offsets(t=2), [file]))
    proxy.clear()
    committer.discard([file])
    restarted = table.make("t", "sink")
    assert restarted.load(T0) == offsets(t=2)
    assert numbers(table.read("t")) == [1, 2]
    append(table, restarted, 2, [3], offsets(t=3))
    assert numbers(table.read("t")) == [1, 2, 3]


def test_commit_that_the_server_refuses_fails_and_its_files_can_be_deleted(table: Combination, proxy: FaultyS3) -> None:
    committer = open_new(table)
    append(table, committer, 0, [1], offsets(t=1))
    file = table.write(committer, rows(2), "b.parquet")
    proxy.add(S3Fault(is_commit, 1, status=403, code="AccessDenied"))
    with pytest.raises(ConnectError, match=r"table s3://lake/.* cannot be written: .*403 Forbidden") as raised:
        committer.commit(Commit(identity(1), offsets(t=2), [file]))
    assert not isinstance(raised.value, CommitOutcomeUnknownError)
    assert proxy.applied == 1
    committer.discard([file])
    assert not table.exists(committer, "b.parquet")
    assert table.make("t", "sink").load(T0) == offsets(t=1)


def test_renewed_credentials_are_used_for_the_next_commit(table: Combination, server: s3.S3Server) -> None:
    committer = open_new(table)
    append(table, committer, 0, [1], offsets(t=1))
    stale = open_new(table)
    append(table, committer, 1, [2], offsets(t=2))
    stale.use_access(replace(s3_access(server), session_token="renewed"))  # the server itself, not the proxy
    with pytest.raises(TableConflictError):
        append(table, stale, 2, [2], offsets(t=2))
    committer.use_access(s3_access(server))
    append(table, committer, 2, [3], offsets(t=3))
    assert numbers(table.read("t")) == [1, 2, 3]


def test_log_says_that_s3_does_not_respond_while_requests_are_repeated(
    table: Combination, proxy: FaultyS3, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    committer = open_new(table)
    append(table, committer, 0, [1], offsets(t=1))
    assert not caplog.records
    monkeypatch.setattr(slow_requests, "WARN_S", 0.1)
    for action in ("committing to", "reading"):
        proxy.add(S3Fault(lambda *_: True, 1, delay_s=1.0))
        if action == "reading":
            committer.load(T0)
        else:
            append(table, committer, 1, [2], offsets(t=2))
        assert f"/t: {action} it takes longer than 0.1 s, because S3 does not respond" in caplog.text


def test_table_that_cannot_be_read_is_named_with_the_cause(table: Combination, proxy: FaultyS3) -> None:
    proxy.add(S3Fault(lambda *_: True, 1000, status=403, code="AccessDenied"))
    with pytest.raises(ConnectError, match=r"^table s3://lake/\S+/t cannot be read: .*403 Forbidden") as raised:
        table.make("t", "sink").load(T0)
    assert "\x1b" not in str(raised.value)
