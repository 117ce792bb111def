"""Tracks brokers that are suspected to be dead or were fenced recently, so that clients find new leaders quickly.

Clients request metadata as soon as their connection to a leader breaks. If the response still names that leader,
librdkafka waits a second before it requests metadata again. For this reason, if this broker's connection to the leader
has broken too, the Metadata response waits up to 0.4 s until the controller has fenced the leader and elected new
leaders.

A fenced broker stays in the list of brokers for 10 s, although it leads no partitions. If a broker is missing from the
list, librdkafka removes the broker's partitions before it reads their new leaders, and needs a second to find these
partitions again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from headrace_broker.metadata.image import MetadataImage

_RESOLVE_TIMEOUT_S = 0.4
_LISTED_AFTER_FENCING_S = 10.0


class SuspectedBrokers:
    """Brokers that are suspected to be dead, and brokers that were fenced recently.

    All methods run on the event loop.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._suspects: dict[
            int, tuple[int, float]
        ] = {}  # by broker id: broker epoch, time at which the suspicion expires
        self._recently_fenced: dict[int, float] = {}  # by broker id: Metadata responses list the broker until this time
        self._live: frozenset[int] = frozenset()
        self._changed = asyncio.Event()

    def suspect(self, broker_id: int, image: MetadataImage) -> None:
        """Mark a broker as suspected dead, because its connection was closed.

        A broker that is fenced in `image`, or is not in `image`, is ignored.
        """
        broker = image.brokers.get(broker_id)
        if broker is not None and not broker.fenced:
            self._suspects[broker_id] = (broker.epoch, self._loop.time() + _RESOLVE_TIMEOUT_S)

    def clear(self, broker_id: int) -> None:
        """Remove a broker from the suspects, because it responds."""
        if self._suspects.pop(broker_id, None) is not None:
            self._notify()

    def on_image_change(self, image: MetadataImage) -> None:
        """Remove the suspects that the controller has fenced, and those that have registered again."""
        live = frozenset(broker.broker_id for broker in image.live_brokers())
        for broker_id in self._live - live:
            self._recently_fenced[broker_id] = self._loop.time() + _LISTED_AFTER_FENCING_S
        self._live = live
        confirmed_dead = [broker_id for broker_id in self._suspects if self._is_confirmed_dead(broker_id, image)]
        for broker_id in confirmed_dead:
            del self._suspects[broker_id]
        if confirmed_dead:
            self._notify()

    def _is_confirmed_dead(self, broker_id: int, image: MetadataImage) -> bool:
        broker = image.brokers.get(broker_id)
        return broker_id not in self._live or broker is None or broker.epoch != self._suspects[broker_id][0]

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def has_suspects(self, broker_ids: Collection[int]) -> bool:
        """Return whether one of these brokers is suspected."""
        now = self._loop.time()
        return any(broker_id in broker_ids and until > now for broker_id, (_, until) in self._suspects.items())

    async def wait_until_resolved(self, broker_ids: Collection[int]) -> None:
        """Wait until none of these brokers is a suspect. A broker is a suspect for at most `_RESOLVE_TIMEOUT_S`."""
        while self.has_suspects(broker_ids):
            until = max(until for broker_id, (_, until) in self._suspects.items() if broker_id in broker_ids)
            try:
                async with asyncio.timeout_at(until):
                    await self._changed.wait()
            except TimeoutError:
                return

    def recently_fenced(self) -> list[int]:
        """Return the brokers that are not live now, but were live in the last `_LISTED_AFTER_FENCING_S` seconds."""
        now = self._loop.time()
        self._recently_fenced = {item: until for item, until in self._recently_fenced.items() if until > now}
        return [broker_id for broker_id in self._recently_fenced if broker_id not in self._live]
