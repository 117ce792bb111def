"""When each broker was last heard of: what only the active controller knows, and a new one must learn again. Pure.

A broker that is silent for longer than its session is stale.  One whose process is known to be dead is stale at once:
`dead` is told when its connection went and another is refused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Contact:
    heard_ms: int
    metadata_offset: int = -1
    shutdown_offset: int = -1
    is_dead: bool = False


class BrokerLiveness:
    """Owned by the active controller; a new one begins by giving everybody a full session."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}

    def heard(self, broker_id: int, metadata_offset: int, now_ms: int) -> None:
        """A heartbeat came."""
        contact = self._contacts.setdefault(broker_id, _Contact(now_ms))
        contact.heard_ms = now_ms
        contact.metadata_offset = max(contact.metadata_offset, metadata_offset)
        contact.is_dead = False

    def registered(self, broker_id: int, now_ms: int) -> None:
        """A new incarnation registered, or a new controller begins to wait for it."""
        self._contacts[broker_id] = _Contact(now_ms)

    def excuse(self, silence_ms: int) -> None:
        """The controller itself was held up for so long: what it did not hear meanwhile says nothing of the brokers."""
        for contact in self._contacts.values():
            contact.heard_ms += silence_ms

    def dead(self, broker_id: int) -> None:
        """The broker's process is gone."""
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.is_dead = True

    def forget(self, broker_id: int) -> None:
        """The broker was unregistered."""
        self._contacts.pop(broker_id, None)

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """Whether the broker must be taken to be alive."""
        contact = self._contacts.get(broker_id)
        return contact is not None and not contact.is_dead and now_ms - contact.heard_ms <= self._session_timeout_ms

    def was_heard_after(self, broker_id: int, time_ms: int) -> bool:
        """Whether the broker has given a sign of life since then."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.heard_ms > time_ms

    def stale(self, brokers: list[int], now_ms: int) -> list[int]:
        """Those of the brokers whose session is over."""
        return [broker_id for broker_id in brokers if not self.has_session(broker_id, now_ms)]

    def next_deadline_ms(self, brokers: list[int]) -> int | None:
        """When the first of the brokers may become stale."""
        times = [self._contacts[broker_id].heard_ms for broker_id in brokers if broker_id in self._contacts]
        return min(times) + self._session_timeout_ms + 1 if times else None

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """The broker's leaders were moved by the record at `offset`, which all others must see before it goes."""
        self._contacts[broker_id].shutdown_offset = offset

    def shutdown_offset(self, broker_id: int) -> int:
        """The offset given to `begin_shutdown`, -1 before."""
        contact = self._contacts.get(broker_id)
        return -1 if contact is None else contact.shutdown_offset

    def lowest_metadata_offset(self, brokers: list[int]) -> int:
        """Up to where all of the brokers have read the metadata; a very large number without any."""
        return min(
            (self._contacts[item].metadata_offset for item in brokers if item in self._contacts), default=1 << 62
        )
