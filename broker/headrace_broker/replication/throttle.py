"""Replication throttles (KIP-73), which limit the bytes per second of replicas that are catching up.

A broker has a leader throttle for the bytes that it sends, and a follower throttle for the bytes that it fetches. Each
throttle has a rate limit and a set of throttled partitions. The bytes of all replicas of these partitions count
towards the measured rate, but only replicas outside the ISR are delayed. So no replica leaves the ISR because of a
throttle. As in Kafka, the measured rate is the number of bytes in the retained samples, divided by the time since the
oldest sample started (at least one sample's duration).

This module does no I/O. Only the broker's event loop uses it, so there are no locks.
"""

from __future__ import annotations

from collections import deque

EVERY_PARTITION = frozenset((-1,))


class ReplicationThrottle:
    """A rate limit and the partitions that are throttled. The argument `now_ms` must never decrease."""

    def __init__(self, samples_max: int, sample_ms: int) -> None:
        self.bytes_per_s: int | None = None
        self._samples_max = samples_max
        self._sample_ms = sample_ms
        self._samples: deque[list[int]] = deque()  # [start time, time of the last call of `record`, bytes]
        self._total_bytes = 0  # the sum of the bytes in all samples
        self._partitions: dict[str, frozenset[int]] = {}

    # -- throttled replicas ------------------------------------------------------------------------------------------

    def set_throttled_replicas(self, topic: str, replicas: str, broker_id: int) -> None:
        """Set which of the topic's replicas on this broker are throttled.

        `replicas` is a list of partition:broker pairs, or * for all replicas. `broker_id` is the id of this broker.
        """
        if replicas.strip() == "*":
            partitions = EVERY_PARTITION
        else:
            pairs = [pair.strip().split(":") for pair in replicas.split(",") if pair.strip()]
            partitions = frozenset(int(index) for index, broker in pairs if int(broker) == broker_id)
        if partitions:
            self._partitions[topic] = partitions
        else:
            self._partitions.pop(topic, None)

    def is_throttled(self, topic: str, index: int) -> bool:
        """Return whether this broker's replica of the partition is throttled."""
        partitions = self._partitions.get(topic)
        return partitions is not None and (partitions is EVERY_PARTITION or index in partitions)

    # -- the rate ----------------------------------------------------------------------------------------------------

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that were sent or fetched for a throttled replica."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._sample_ms:
            samples.append([now_ms, now_ms, 0])
            if len(samples) > self._samples_max + 1:
                self._drop_oldest_sample()
        samples[-1][1] = now_ms
        samples[-1][2] += size_bytes
        self._total_bytes += size_bytes

    def _drop_oldest_sample(self) -> None:
        self._total_bytes -= self._samples.popleft()[2]

    def is_exceeded(self, now_ms: int, more_bytes: int = 0) -> bool:
        """Return whether the counted bytes plus `more_bytes` exceed the rate limit."""
        return self.delay_ms(now_ms, more_bytes) > 0

    def delay_ms(self, now_ms: int, more_bytes: int = 0) -> int:
        """Return how long to delay throttled replicas until the rate, including `more_bytes`, is within the limit.

        Return 0 if no delay is needed.
        """
        if self.bytes_per_s is None:
            return 0
        samples = self._samples
        while samples and now_ms - samples[0][1] >= self._samples_max * self._sample_ms:
            self._drop_oldest_sample()
        total_bytes = self._total_bytes + more_bytes
        elapsed_ms = max(now_ms - samples[0][0], self._sample_ms) if samples else self._sample_ms
        if total_bytes * 1000 <= self.bytes_per_s * elapsed_ms:
            return 0
        if self.bytes_per_s == 0:
            return self._sample_ms
        return -(-total_bytes * 1000 // self.bytes_per_s) - elapsed_ms
