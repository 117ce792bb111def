"""What clients are told of brokers whose connection has just broken, and of those that were just fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace

from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.server.membership.departures import Departures

LIVE = BrokerImage(broker_id=1, epoch=7, incarnation_id=bytes(16), endpoints=(), fenced=False)
FENCED = replace(LIVE, fenced=True)
BACK = replace(LIVE, epoch=9)


def image(*brokers: BrokerImage) -> MetadataImage:
    return replace(MetadataImage(), brokers={broker.broker_id: broker for broker in brokers})


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now_s = max(self.now_s, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run(check: Coroutine[None, None, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        runner.run(check)


def test_an_answer_waits_until_the_leader_is_judged() -> None:
    async def check() -> None:
        departures = Departures()
        departures.image_changed(image(LIVE))
        departures.lost(1, image(LIVE))
        assert departures.await_judgement({1, 2})
        assert not departures.await_judgement({2})
        waiting = asyncio.ensure_future(departures.judged({1}))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        departures.image_changed(image(FENCED))
        await waiting
        assert asyncio.get_running_loop().time() == 0.05

    run(check())


def test_a_false_alarm_holds_nobody_up() -> None:
    async def check() -> None:
        departures = Departures()
        departures.lost(1, image(LIVE))
        waiting = asyncio.ensure_future(departures.judged({1}))
        await asyncio.sleep(0)
        departures.found(1)
        await waiting
        assert asyncio.get_running_loop().time() == 0

    run(check())


def test_nobody_waits_for_long() -> None:
    async def check() -> None:
        departures = Departures()
        departures.lost(1, image(LIVE))
        await departures.judged({1})
        assert 0 < asyncio.get_running_loop().time() < 0.5
        assert not departures.await_judgement({1})

    run(check())


def test_a_broker_that_is_fenced_already_is_no_suspect() -> None:
    async def check() -> None:
        departures = Departures()
        departures.lost(1, image(FENCED))
        departures.lost(2, image())
        assert not departures.await_judgement({1, 2})

    run(check())


def test_a_fenced_broker_stays_listed_for_a_while() -> None:
    async def check() -> None:
        departures = Departures()
        departures.image_changed(image(LIVE))
        assert departures.lately() == []
        departures.image_changed(image(FENCED))
        assert departures.lately() == [1]
        departures.image_changed(image(BACK))
        assert departures.lately() == []
        departures.image_changed(image(FENCED))
        await asyncio.sleep(11)
        assert departures.lately() == []

    run(check())
