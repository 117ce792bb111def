"""Tests of the queue of uploads: results, waiting, and one upload at a time for each key."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from headrace_connectors.s3.upload_queue import UploadQueue


@pytest.fixture
def queue() -> Iterator[UploadQueue[str]]:
    queue: UploadQueue[str] = UploadQueue(2)
    yield queue
    queue.close()


def test_result_of_an_upload_is_returned_once(queue: UploadQueue[str]) -> None:
    error = OSError("the store is away")

    def fail() -> None:
        raise error

    queue.start("fails", fail)
    queue.start("succeeds", lambda: None)
    results: dict[str, BaseException | None] = {}
    while len(queue):
        queue.wait_for_next()
        results |= queue.take_results()
    assert results == {"fails": error, "succeeds": None}
    assert queue.take_results() == {}


def test_upload_in_progress_has_no_result_and_does_not_delay_the_results_of_other_uploads(
    queue: UploadQueue[str],
) -> None:
    release = threading.Event()
    queue.start("slow", lambda: bool(release.wait(30)) and None)
    queue.start("fast", lambda: None)
    queue.wait_for_next()
    assert queue.take_results() == {"fast": None}
    assert "slow" in queue
    release.set()
    queue.wait_for_next()
    assert queue.take_results() == {"slow": None}


def test_method_forget_waits_until_the_uploads_have_ended_and_discards_their_results(queue: UploadQueue[str]) -> None:
    ended = []
    queue.start("a", lambda: ended.append("a"))
    queue.start("b", lambda: ended.append("b"))
    queue.forget({"a"})
    assert "a" in ended
    assert "a" not in queue
    queue.forget({"b", "unknown"})
    assert sorted(ended) == ["a", "b"]
    assert len(queue) == 0
