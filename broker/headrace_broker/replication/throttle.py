"""Throttles of replication (KIP-73): how many bytes a second may go to, or come from, replicas that catch up.

A broker has two, one for what it sends as leader and one for what it fetches as follower.  Each knows its rate, and
which partitions it holds for.  Bytes of throttled replicas that are in sync are counted too, but only those that are
not are held back: a throttle that took replicas out of sync would only make more of them wait.  As in Kafka the rate is
that of the last samples, over the time since the oldest of them began, and one sample's time at least.

Pure; owned by the event loop of a broker.
"""

from __future__ import annotations

from collections import deque

EVERY_PARTITION = frozenset((-1,))


class Throttle:
    """A rate in force for some partitions; `now_ms` never goes back."""

    def __init__(self, samples_max: int, sample_ms: int) -> None:
        self.bytes_per_s: int | None = None
        self._samples_max = samples_max
        self._sample_ms = sample_ms
        self._samples: deque[list[int]] = deque()  # [when it began, when something was counted last, bytes]
        self._counted = 0  # bytes in all samples
        self._partitions: dict[str, frozenset[int]] = {}

    # -- what it holds for -------------------------------------------------------------------------------------------

    def hold_for(self, topic: str, replicas: str, broker_id: int) -> None:
        """Take the topic's list of throttled replicas: partition:broker pairs, or *."""
        if replicas.strip() == "*":
            partitions = EVERY_PARTITION
        else:
            pairs = [pair.strip().split(":") for pair in replicas.split(",") if pair.strip()]
            partitions = frozenset(int(index) for index, broker in pairs if int(broker) == broker_id)
        if partitions:
            self._partitions[topic] = partitions
        else:
            self._partitions.pop(topic, None)

    def holds_for(self, topic: str, index: int) -> bool:
        """Whether this replica of the partition is throttled."""
        partitions = self._partitions.get(topic)
        return partitions is not None and (partitions is EVERY_PARTITION or index in partitions)

    # -- the rate ----------------------------------------------------------------------------------------------------

    def count(self, size_bytes: int, now_ms: int) -> None:
        """Bytes of a throttled replica were sent, or came."""
        samples = self._samples
        if not samples or now_ms - samples[-1][0] >= self._sample_ms:
            samples.append([now_ms, now_ms, 0])
            if len(samples) > self._samples_max + 1:
                self._forget_oldest()
        samples[-1][1] = now_ms
        samples[-1][2] += size_bytes
        self._counted += size_bytes

    def _forget_oldest(self) -> None:
        self._counted -= self._samples.popleft()[2]

    def is_exceeded(self, now_ms: int, more_bytes: int = 0) -> bool:
        """Whether what was counted, and these, are more than the rate allows."""
        return self.delay_ms(now_ms, more_bytes) > 0

    def delay_ms(self, now_ms: int, more_bytes: int = 0) -> int:
        """How long to count nothing until the rate is kept again, 0 when it is."""
        if self.bytes_per_s is None:
            return 0
        samples = self._samples
        while samples and now_ms - samples[0][1] >= self._samples_max * self._sample_ms:
            self._forget_oldest()
        counted = self._counted + more_bytes
        elapsed_ms = max(now_ms - samples[0][0], self._sample_ms) if samples else self._sample_ms
        if counted * 1000 <= self.bytes_per_s * elapsed_ms:
            return 0
        if self.bytes_per_s == 0:
            return self._sample_ms
        return -(-counted * 1000 // self.bytes_per_s) - elapsed_ms
