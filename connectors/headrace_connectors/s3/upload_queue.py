"""Runs uploads in threads while the task continues to put records.

Only the task's thread calls the queue. A key identifies the files of one directory. For each key, at most one upload
runs at a time. The result of an upload stays in the queue until the task calls `take_results`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class UploadQueue(Generic[K]):
    """Uploads by key: those that are in progress, and those that have ended since the last `take_results`."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="s3-upload")
        self._uploads: dict[K, Future[None]] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._uploads

    def __len__(self) -> int:
        return len(self._uploads)

    def start(self, key: K, upload: Callable[[], None]) -> None:
        """Start an upload. The queue must not contain another upload of the key."""
        self._uploads[key] = self._pool.submit(upload)

    def take_results(self) -> dict[K, BaseException | None]:
        """Remove the uploads that have ended. Return, by key, the upload's error or None if it succeeded."""
        ended = {key: upload for key, upload in self._uploads.items() if upload.done()}
        for key in ended:
            del self._uploads[key]
        return {key: upload.exception() for key, upload in ended.items()}

    def wait_for_next(self) -> None:
        """Wait until at least one upload has ended, if there is any."""
        wait(self._uploads.values(), return_when=FIRST_COMPLETED)

    def forget(self, keys: Collection[K]) -> None:
        """Wait until the uploads of these keys have ended, and drop their results."""
        uploads = [upload for key, upload in self._uploads.items() if key in keys]
        wait(uploads)
        self._uploads = {key: upload for key, upload in self._uploads.items() if key not in keys}

    def close(self) -> None:
        """Wait for all uploads, and end the threads."""
        self._pool.shutdown(wait=True)
