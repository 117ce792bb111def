"""Requests that name so many things that answering them at once would hold the loop: they are answered in parts.

A handler module whose answers are per item says in `PARTS` how its request divides and where the answers of the parts
belong. A request that comes in a large frame is then read in a thread (which the loop interrupts every few
milliseconds), divided into requests of a few items, handled part by part with the loop free in between, joined to one
answer, and written in the thread again. The parts of such requests take turns, so that one that takes long holds up no
other; only so many are in memory at a time, and small requests never come here.
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
_AT_ONCE = 8
Result = TypeVar("Result")
_NAMES = ("group_id", "name", "topic", "topic_id", "resource_type", "resource_name")


@dataclass(frozen=True, slots=True)
class Parts:
    """How a request divides: the nested arrays of its items, the answer's arrays that correspond to them.

    `together`: items of equal names stay in one part, because the handler refuses those.
    """

    items: tuple[str, ...]
    answers: tuple[str, ...]
    together: bool = False
    count_max: int = 500


def divided(request: Any, parts: Parts) -> Iterator[Any]:
    """Requests of at most `count_max` items each that ask the same together; `request` itself is left alone."""
    if parts.together:
        request = _told_once(request, parts.items[0])
    for part, _ in _pieces(request, parts.items, parts.count_max):
        yield part


def _told_once(request: Any, field: str) -> Any:
    """The request with items of equal names in one list that counts as one; a third such item would say nothing new."""
    by_name: dict[Hashable, list[Any]] = {}
    for item in getattr(request, field) or ():
        equals = by_name.setdefault(item if isinstance(item, str) else _key(item), [])
        if len(equals) < 2:
            equals.append(item)
    return _with(request, field, list(by_name.values()))


def _key(item: Any) -> tuple[Hashable, ...]:
    return tuple([getattr(item, name, None) for name in _NAMES])


def _has_failed(response: Any) -> bool:
    return bool(getattr(response, "error_code", 0))


def _pieces(node: Any, items: tuple[str, ...], count_max: int) -> Iterator[tuple[Any, int]]:
    """(copy of the node with some of its items, their count)."""
    children = getattr(node, items[0])
    if not children:
        yield node, 1
        return
    taken: list[Any] = []
    count = 0
    inner = ((child, 1) for child in children) if len(items) == 1 else _inner(children, items[1:], count_max)
    for piece, weight in inner:
        if count + weight > count_max and taken:
            yield _with(node, items[0], taken), count
            taken, count = [], 0
        taken.extend(piece) if type(piece) is list else taken.append(piece)
        count += weight
    yield _with(node, items[0], taken), count


def _inner(children: list[Any], items: tuple[str, ...], count_max: int) -> Iterator[tuple[Any, int]]:
    for child in children:
        yield from _pieces(child, items, count_max)


def _with(node: Any, field: str, items: list[Any]) -> Any:
    changed = copy.copy(node)
    setattr(changed, field, items)
    return changed


class Joined:
    """The answer of a whole request, from the answers of its parts."""

    def __init__(self, answers: tuple[str, ...]) -> None:
        self._answers = answers
        self._known: dict[Hashable, Any] = {}
        self.response: Any = None

    def add(self, response: Any) -> None:
        """Take in the answer of one part; an answer that is an error of the whole replaces all."""
        if self.response is None or _has_failed(response):
            self.response, items = response, getattr(response, self._answers[0])
            setattr(response, self._answers[0], [])
        else:
            items = getattr(response, self._answers[0])
        self._add(self.response, items, self._answers, ())

    def _add(self, node: Any, items: list[Any], answers: tuple[str, ...], path: tuple[Hashable, ...]) -> None:
        present = getattr(node, answers[0])
        if len(answers) == 1:
            present.extend(items)
            return
        for item in items:
            key = (*path, *_key(item))
            known = self._known.setdefault(key, item)
            if known is item:
                present.append(item)
                inner = getattr(item, answers[1])
                setattr(item, answers[1], [])
            else:
                inner = getattr(item, answers[1])
            self._add(known, inner or [], answers[1:], key)


async def answered_in_parts(
    request: Any, parts: Parts, handle: Callable[[Any], Any], turn: asyncio.Lock | None = None
) -> Any:
    """The answer to a request that is handled part by part, with the loop, and the turn, free in between."""
    joined = Joined(parts.answers)
    for part in divided(request, parts):
        async with turn or nullcontext():
            response = handle(part)
            if inspect.isawaitable(response):
                response = await response
        joined.add(response)
        if _has_failed(response):
            break
        await asyncio.sleep(0)
    return joined.response


class LargeRequests:
    """Where large requests take their turn."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="large-requests")
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._turn = asyncio.Lock()
        self._working = 0

    async def answer(
        self,
        read: Callable[[], Any],
        handle: Callable[[Any], Any],
        write: Callable[[Any], Result],
        parts: tuple[Parts, ...],
    ) -> Result:
        """Read a request, answer it in parts, write the answer; `read` and `write` run in the thread."""
        async with self._places:
            with self._without_collector():
                request = await self.aside(read)
                fitting = next((each for each in parts if getattr(request, each.items[0])), parts[0])
                response = await answered_in_parts(request, fitting, handle, self._turn)
                return await self.aside(lambda: write(response))

    async def answer_whole(
        self,
        read: Callable[[], Any],
        handle: Callable[[Any], Any],
        write: Callable[[Any], Result],
        parts: tuple[Parts, ...] = (),
    ) -> Result:
        """The same for a request that does not divide, and whose answer may have to wait for other requests."""
        request = await self.aside(read)
        response = handle(request)
        if inspect.isawaitable(response):
            response = await response
        return write(response)

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Run pure computing work in the thread."""
        with self._without_collector():
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @contextmanager
    def _without_collector(self) -> Iterator[None]:
        """Messages hold no cycles; looking through a million of them for some would stop everybody."""
        self._working += 1
        gc.disable()
        try:
            yield
        finally:
            self._working -= 1
            if not self._working:
                gc.enable()

    def close(self) -> None:
        """Start nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
