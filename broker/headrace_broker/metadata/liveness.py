"""Broker sessions: the time at which the active controller last received a heartbeat from each broker.

This state is not replicated. A new active controller starts with a full session for every broker. A broker is stale if
its session timeout has passed since its last heartbeat. A broker whose process is known to be dead, because it closed
its connection and refuses a new one, is stale immediately (`mark_dead`). This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Contact:
    last_contact_ms: int
    metadata_offset: int = -1
    shutdown_offset: int = -1
    is_dead: bool = False


class BrokerLiveness:
    """The sessions of all brokers, as known to the active controller."""

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._contacts: dict[int, _Contact] = {}

    def on_heartbeat(self, broker_id: int, metadata_offset: int, now_ms: int) -> None:
        """Record a heartbeat from the broker, which has read the metadata log up to `metadata_offset`."""
        contact = self._contacts.setdefault(broker_id, _Contact(now_ms))
        contact.last_contact_ms = now_ms
        contact.metadata_offset = max(contact.metadata_offset, metadata_offset)
        contact.is_dead = False

    def on_registered(self, broker_id: int, now_ms: int) -> None:
        """Start a new session, because a broker incarnation registered or a new controller became active."""
        self._contacts[broker_id] = _Contact(now_ms)

    def extend_sessions(self, pause_ms: int) -> None:
        """Extend every session by `pause_ms`, the time for which the controller could not process heartbeats."""
        for contact in self._contacts.values():
            contact.last_contact_ms += pause_ms

    def mark_dead(self, broker_id: int) -> None:
        """End the session of a broker whose process is dead."""
        contact = self._contacts.get(broker_id)
        if contact is not None:
            contact.is_dead = True

    def remove(self, broker_id: int) -> None:
        """Remove the session of a broker that was unregistered."""
        self._contacts.pop(broker_id, None)

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """Return whether the broker's session is valid: it has not expired, and the broker is not known to be dead."""
        contact = self._contacts.get(broker_id)
        return (
            contact is not None and not contact.is_dead and now_ms - contact.last_contact_ms <= self._session_timeout_ms
        )

    def has_contacted_since(self, broker_id: int, time_ms: int) -> bool:
        """Return whether the broker sent a heartbeat or registered after `time_ms`."""
        contact = self._contacts.get(broker_id)
        return contact is not None and contact.last_contact_ms > time_ms

    def stale_brokers(self, brokers: list[int], now_ms: int) -> list[int]:
        """Return the given brokers whose session has ended."""
        return [broker_id for broker_id in brokers if not self.has_session(broker_id, now_ms)]

    def next_deadline_ms(self, brokers: list[int]) -> int | None:
        """Return the earliest time at which a session of these brokers expires, or None if they have no sessions."""
        times = [self._contacts[broker_id].last_contact_ms for broker_id in brokers if broker_id in self._contacts]
        return min(times) + self._session_timeout_ms + 1 if times else None

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """Begin a broker's controlled shutdown.

        The metadata record at `offset` moved the broker's leaderships to other brokers. The broker may
        shut down when every other broker has read this record.
        """
        self._contacts[broker_id].shutdown_offset = offset

    def shutdown_offset(self, broker_id: int) -> int:
        """Return the offset passed to `begin_shutdown`, or -1 if no controlled shutdown has begun."""
        contact = self._contacts.get(broker_id)
        return -1 if contact is None else contact.shutdown_offset

    def lowest_metadata_offset(self, brokers: list[int]) -> int:
        """Return the offset up to which all given brokers have read the metadata log.

        Brokers without a session are ignored. If none of the brokers has a session, return 2**62.
        """
        return min(
            (self._contacts[item].metadata_offset for item in brokers if item in self._contacts), default=1 << 62
        )
