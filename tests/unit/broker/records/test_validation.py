"""Tests of the check of all records in a batch: with the C parser, and as a stream."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace_broker.records.batch import BatchHeader, CorruptBatchError, read_header
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.validation import RecordsWithoutKeys, check_batch, check_stream
from support.broken_batches import batch_of_payload, broken_records, record, records

Check = Callable[[bytearray, BatchHeader], RecordsWithoutKeys]


def in_chunks(size: int) -> Check:
    def check(batch: bytearray, header: BatchHeader) -> RecordsWithoutKeys:
        return check_stream((batch[start : start + size] for start in range(61, len(batch), size)), header)

    return check


CHECKS: dict[str, Check] = {
    "buffer": lambda batch, header: check_batch(batch, header, find_keyless=True),
    "stream of bytes": in_chunks(1),
    "stream of small chunks": in_chunks(7),
    "stream of one chunk": in_chunks(1 << 30),
}


@pytest.fixture(params=CHECKS)
def check(request: pytest.FixtureRequest) -> Check:
    return CHECKS[request.param]


@pytest.mark.parametrize("broken", [pytest.param(data, id=defect) for defect, data in broken_records()])
def test_batch_with_broken_records_is_rejected(check: Check, broken: bytes) -> None:
    batch = batch_of_payload(broken, 3, 0)
    with pytest.raises(CorruptBatchError, match=r"record \d: "):
        check(batch, read_header(batch))


def test_records_without_keys_are_counted(check: Check) -> None:
    batch = build_batch(RecordColumns(values=[b"1", b"2", None], keys=[b"k", None, None], timestamps=5))
    assert check(batch, read_header(batch)) == RecordsWithoutKeys(2, [1, 2])


@pytest.mark.parametrize("count", [1, 499, 500, 501, 1000, 9000])
def test_batches_of_any_record_count_are_accepted(check: Check, count: int) -> None:
    headers = [[("name", b"value"), ("empty", None)]] * count
    batch = build_batch(RecordColumns(values=[b"v" * 100] * count, headers=headers, timestamps=list(range(count))))
    found = check(batch, read_header(batch))
    assert (found.count, found.indexes) == (count, list(range(min(count, 100))))


def test_header_names_that_are_not_utf_8_are_accepted(check: Check) -> None:
    """Kafka accepts them, and aiokafka's parser does not."""
    batch = batch_of_payload(record(0) + record(1, headers=b"\x02\x04\xff\xfe\x02x"), 2, 0)
    assert check(batch, read_header(batch)).count == 0


def test_any_negative_key_length_is_a_null_key(check: Check) -> None:
    body = b"\0\0\0\x09\x02v\0"
    batch = batch_of_payload(bytes([2 * len(body)]) + body, 1, 0)
    assert check(batch, read_header(batch)).indexes == [0]


def test_check_of_a_buffer_pauses_regularly() -> None:
    batch = batch_of_payload(records(5000), 5000, 0)
    pauses: list[None] = []
    check_batch(batch, read_header(batch), find_keyless=False, pause=lambda: pauses.append(None))
    assert len(pauses) == 10
