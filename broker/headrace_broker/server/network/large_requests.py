"""Handles large requests in parts, because a request with very many items would block the event loop.

If an API returns one result per item, its handler module declares in `REQUEST_SPLITS` how to split a request and how to
merge the responses. A request that arrives in a large frame is decoded in a thread, which yields the GIL to the event
loop every few milliseconds. The request is then split into *parts*, which are requests of at most a few hundred items
each. Between two parts, the event loop does other work. The responses to the parts are merged into one response, which
the thread encodes.

Parts of several large requests alternate, so that a slow request does not delay the others. Only a few large requests
are in memory at a time. Small requests do not use this module.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

LARGE_FRAME_BYTES = 8 * 1024
_REQUESTS_MAX = 8
Result = TypeVar("Result")
_KEY_FIELDS = ("group_id", "name", "topic", "topic_id", "resource_type", "resource_name", "producer_id")


@dataclass(frozen=True, slots=True)
class RequestSplit:
    """Describes how to split a request into parts, and how to merge the responses to the parts.

    `items` contains the names of the nested arrays that contain the request's items, the outermost array first.
    `responses` contains the names of the corresponding arrays of the response. With `keep_duplicates_together`, items
    with equal names stay in the same part of the request, so that the handler can reject duplicates.
    """

    items: tuple[str, ...]
    responses: tuple[str, ...]
    keep_duplicates_together: bool = False
    items_max: int = 500


def split_request(request: Any, split: RequestSplit) -> Iterator[Any]:
    """Split a request into requests of at most `split.items_max` items each; `request` itself is not changed."""
    if split.keep_duplicates_together:
        request = _group_duplicates(request, split.items[0])
    for part, _ in _split_node(request, split.items, split.items_max):
        yield part


def _group_duplicates(request: Any, field: str) -> Any:
    """Return a copy of the request in which the array `field` contains one list for each name.

    A list contains the items with this name, but not more than two of them. The handler rejects a name if the name has
    two items. `_split_node` counts a list as one item, so it does not separate duplicates.
    """
    by_name: dict[Hashable, list[Any]] = {}
    for item in getattr(request, field) or ():
        duplicates = by_name.setdefault(item if isinstance(item, str) else _key(item), [])
        if len(duplicates) < 2:
            duplicates.append(item)
    return _with_items(request, field, list(by_name.values()))


def _key(item: Any) -> tuple[Hashable, ...]:
    return tuple([getattr(item, name, None) for name in _KEY_FIELDS])


def _has_failed(response: Any) -> bool:
    return bool(getattr(response, "error_code", 0))


def _split_node(node: Any, items: tuple[str, ...], items_max: int) -> Iterator[tuple[Any, int]]:
    """Split `node` into copies with at most `items_max` items each; yield (copy, number of its items).

    `items` contains the names of the nested arrays that contain the items, the outermost array first.
    """
    children = getattr(node, items[0])
    if not children:
        yield node, 1
        return
    part: list[Any] = []
    count = 0
    inner = ((child, 1) for child in children) if len(items) == 1 else _split_children(children, items[1:], items_max)
    for piece, weight in inner:
        if count + weight > items_max and part:
            yield _with_items(node, items[0], part), count
            part, count = [], 0
        part.extend(piece) if type(piece) is list else part.append(piece)
        count += weight
    yield _with_items(node, items[0], part), count


def _split_children(children: list[Any], items: tuple[str, ...], items_max: int) -> Iterator[tuple[Any, int]]:
    for child in children:
        yield from _split_node(child, items, items_max)


def _with_items(node: Any, field: str, items: list[Any]) -> Any:
    changed = copy.copy(node)
    setattr(changed, field, items)
    return changed


class ResponseMerger:
    """Merges the responses to the parts of a request into one response."""

    def __init__(self, arrays: tuple[str, ...]) -> None:
        self._arrays = arrays
        self._merged: dict[Hashable, Any] = {}
        self.response: Any = None

    def add(self, response: Any) -> None:
        """Merge `response`, which is the response to one part of the request, into the complete response.

        A response with a top-level error replaces the complete response.
        """
        if self.response is None or _has_failed(response):
            self.response, items = response, getattr(response, self._arrays[0])
            setattr(response, self._arrays[0], [])
        else:
            items = getattr(response, self._arrays[0])
        self._add(self.response, items, self._arrays, ())

    def _add(self, node: Any, items: list[Any], arrays: tuple[str, ...], path: tuple[Hashable, ...]) -> None:
        present = getattr(node, arrays[0])
        if len(arrays) == 1:
            present.extend(items)
            return
        for item in items:
            key = (*path, *_key(item))
            merged = self._merged.setdefault(key, item)
            if merged is item:
                present.append(item)
                inner = getattr(item, arrays[1])
                setattr(item, arrays[1], [])
            else:
                inner = getattr(item, arrays[1])
            self._add(merged, inner or [], arrays[1:], key)


async def handle_in_parts(
    request: Any, split: RequestSplit, handle: Callable[[Any], Any], lock: asyncio.Lock | None = None
) -> Any:
    """Handle a request in parts and return the merged response.

    `lock` is released between two parts, so that a part of another large request can be handled.
    """
    merger = ResponseMerger(split.responses)
    for part in split_request(request, split):
        async with lock or nullcontext():
            response = handle(part)
            if inspect.isawaitable(response):
                response = await response
        merger.add(response)
        if _has_failed(response):
            break
        await asyncio.sleep(0)
    return merger.response


class LargeRequests:
    """Runs the large requests of one node.

    A thread encodes and decodes messages; the number of running requests is limited.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-requests")
        self._requests = asyncio.Semaphore(_REQUESTS_MAX)
        self._part_lock = asyncio.Lock()
        self._gc_pauses = 0

    async def handle_split(
        self,
        read: Callable[[], Any],
        handle: Callable[[Any], Any],
        write: Callable[[Any], Result],
        splits: tuple[RequestSplit, ...],
    ) -> Result:
        """Decode a request with `read`, handle the request in parts, and encode the response with `write`.

        `read` and `write` run in another thread. Each `RequestSplit` in `splits` is one way to split the request.
        `RequestSplit.items[0]` is the name of an array in the request. This method uses the first `RequestSplit` with a
        non-empty array.
        """
        async with self._requests:
            with self._gc_paused():
                request = await self.run_in_executor(read)
                split = next((each for each in splits if getattr(request, each.items[0])), splits[0])
                response = await handle_in_parts(request, split, handle, self._part_lock)
                return await self.run_in_executor(lambda: write(response))

    async def handle_unsplit(
        self,
        read: Callable[[], Any],
        handle: Callable[[Any], Any],
        write: Callable[[Any], Result],
        splits: tuple[RequestSplit, ...] = (),
    ) -> Result:
        """Decode a request with `read`, handle it as a whole, and encode the response with `write`.

        Wait for the response if necessary. `splits` is ignored.
        """
        request = await self.run_in_executor(read)
        response = handle(request)
        if inspect.isawaitable(response):
            response = await response
        return write(response)

    async def run_in_executor(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the thread that encodes and decodes messages. `work` must do no I/O."""
        with self._gc_paused():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @contextmanager
    def _gc_paused(self) -> Iterator[None]:
        """Pause garbage collection: messages have no cycles, and scanning a million of them would stop all threads."""
        self._gc_pauses += 1
        gc.disable()
        try:
            yield
        finally:
            self._gc_pauses -= 1
            if not self._gc_pauses:
                gc.enable()

    def close(self) -> None:
        """Cancel queued work and reject new work."""
        self._thread.shutdown(wait=False, cancel_futures=True)
