"""Brokers that are going, or have just gone, and what clients are told of them meanwhile.

Clients ask for metadata the moment a leader's connection breaks, and those of librdkafka ask again only a second later.
So an answer that would still name a leader whose connection to this broker has broken too waits until the controller
has judged it, for a moment at most.  And a broker that was fenced stays listed for a while, though it leads nothing: a
client that sees it vanish tears its partitions down before it reads who leads them now, which takes it another second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from headrace_broker.metadata.image import MetadataImage

_JUDGED_WITHIN_S = 0.4
_LISTED_S = 10.0


class Departures:
    """Lives on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._suspects: dict[int, tuple[int, float]] = {}  # with the broker epoch, and until when
        self._departed: dict[int, float] = {}  # until when they are listed
        self._live: frozenset[int] = frozenset()
        self._changed = asyncio.Event()

    def lost(self, broker_id: int, image: MetadataImage) -> None:
        """The broker's connection has broken."""
        broker = image.brokers.get(broker_id)
        if broker is not None and not broker.fenced:
            self._suspects[broker_id] = (broker.epoch, self._loop.time() + _JUDGED_WITHIN_S)

    def found(self, broker_id: int) -> None:
        """The broker answers."""
        if self._suspects.pop(broker_id, None) is not None:
            self._wake()

    def image_changed(self, image: MetadataImage) -> None:
        """The controller has decided something."""
        live = frozenset(broker.broker_id for broker in image.live_brokers())
        for broker_id in self._live - live:
            self._departed[broker_id] = self._loop.time() + _LISTED_S
        self._live = live
        judged = [broker_id for broker_id in self._suspects if self._is_judged(broker_id, image)]
        for broker_id in judged:
            del self._suspects[broker_id]
        if judged:
            self._wake()

    def _is_judged(self, broker_id: int, image: MetadataImage) -> bool:
        broker = image.brokers.get(broker_id)
        return broker_id not in self._live or broker is None or broker.epoch != self._suspects[broker_id][0]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def await_judgement(self, broker_ids: Collection[int]) -> bool:
        """Whether one of these brokers is about to be judged."""
        now = self._loop.time()
        return any(broker_id in broker_ids and until > now for broker_id, (_, until) in self._suspects.items())

    async def judged(self, broker_ids: Collection[int]) -> None:
        """Wait until the controller has judged these brokers, or has had its time."""
        while self.await_judgement(broker_ids):
            until = max(until for broker_id, (_, until) in self._suspects.items() if broker_id in broker_ids)
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                return

    def lately(self) -> list[int]:
        """The brokers that were live a short while ago and are not now."""
        now = self._loop.time()
        self._departed = {item: until for item, until in self._departed.items() if until > now}
        return [broker_id for broker_id in self._departed if broker_id not in self._live]
