"""The conformance suite for self-reading sinks, which consume their topics themselves instead of receiving records.

The suite runs the connector in a worker with a broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from headrace.testing.broker import KafkaBroker
from headrace.testing.conformance.base import HOSTILE_TOPICS, STOP_TIMEOUT_S, Conformance
from headrace.testing.worker import ConnectWorker

NAME = "conformance"
DLQ = "conformance-dlq"
POLL_S = 0.05


class SelfReadingSinkConformance(Conformance):
    """The cases for self-reading sinks. Every case writes records and checks the contents of the external system.

    The connector itself consumes the `topics` of `kafka_broker`, with the converters of its configuration.
    """

    is_exactly_once: ClassVar[bool] = False
    """Whether records that are delivered twice are stored once."""

    reset_loads_again: ClassVar[bool] = False
    """Whether records are stored a second time after a reset of the offsets, because the sink only appends."""

    poison: ClassVar[bytes | None] = None
    """The bytes of a value that the sink cannot store; None skips the case."""

    timeout_s: ClassVar[float] = 60.0
    """The time in which the sink stores the records of a case and commits their offsets."""

    topics: ClassVar[Sequence[str]] = ("test",)

    broker: KafkaBroker
    worker: ConnectWorker

    @pytest.fixture(autouse=True)
    def _set_worker(self, kafka_broker: KafkaBroker, connect_worker: ConnectWorker) -> None:
        self.broker, self.worker = kafka_broker, connect_worker

    def stored(self, topic: str) -> Sequence[Any]:
        """Return the topic's records that the external system contains, as items of any type that supports `==`."""
        raise NotImplementedError(f"{type(self).__name__} must define the method `stored`")

    def value(self, number: int) -> bytes:
        """Return the bytes of the record value with this number; values with different numbers must differ."""
        return b'"value %d"' % number

    def produce(self, first: int, count: int, topic: str = "test", partition: int = 0) -> None:
        """Write `count` records to the topic. Their values are `value(first)`, `value(first + 1)`, and so on."""
        self.broker.produce(topic, [self.value(number) for number in range(first, first + count)], partition=partition)

    def create_topics(self, *names: str, partitions: int = 1) -> None:
        """Create the topics that the connector consumes."""
        for name in names:
            self.broker.create_topic(name, partitions)

    def start(self, topics: Sequence[str] = ("test",), **more: str) -> None:
        """Create the connector, which consumes `topics`, and wait until it runs.

        `more` contains further configuration keys, in which `__` stands for a dot.
        """
        props = {
            **self.config(),
            "topics": ",".join(topics),
            **{key.replace("__", "."): text for key, text in more.items()},
        }
        self.worker.create(NAME, props, wait=False)
        self.worker.wait_for_status(NAME, "RUNNING", self.timeout_s)

    def committed(self) -> dict[tuple[str, int], int]:
        """Return the committed offsets of the connector."""
        found = self.worker.request("GET", f"/connectors/{NAME}/offsets")["offsets"]
        return {
            (each["partition"]["kafka_topic"], each["partition"]["kafka_partition"]): each["offset"]["kafka_offset"]
            for each in found
        }

    def wait_for(self, condition: Callable[[], bool], description: str) -> None:
        """Wait until a condition holds. On a timeout, raise TimeoutError with `description` and the worker's log."""
        deadline = time.monotonic() + self.timeout_s
        while not condition():
            self.worker.status(NAME)
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"timed out after {self.timeout_s:g} s while waiting until {description}\n{self.worker.log}"
                )
            time.sleep(POLL_S)

    def wait_for_committed(self, **ends: int) -> None:
        """Wait until the committed offset of partition 0 of each topic in `ends` has the given value."""
        self.wait_for(
            lambda: all(self.committed().get((topic, 0)) == end for topic, end in ends.items()),
            f"the committed offsets are {ends}",
        )

    def test_every_record_is_stored_once(self) -> None:
        self.create_topics("test", partitions=3)
        self.start()
        for partition in range(3):
            self.produce(partition * 10, 4, partition=partition)
        ends = {("test", partition): 4 for partition in range(3)}
        self.wait_for(lambda: self.committed() == ends, f"the committed offsets are {ends}")
        assert len(self.stored("test")) == 12

    def test_records_written_while_the_connector_is_paused_are_stored_after_it_resumes(self) -> None:
        self.create_topics("test")
        self.start()
        self.produce(0, 3)
        self.wait_for_committed(test=3)
        self.worker.request("PUT", f"/connectors/{NAME}/pause")
        self.worker.wait_for_status(NAME, "PAUSED", self.timeout_s)
        self.produce(3, 3)
        self.worker.request("PUT", f"/connectors/{NAME}/resume")
        self.wait_for_committed(test=6)
        assert len(self.stored("test")) == 6

    @pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
    def test_no_record_is_lost_after_the_worker_restarts(self, is_killed: bool) -> None:
        self.create_topics("test")
        self.start()
        self.produce(0, 3)
        self.wait_for_committed(test=3)
        self.produce(3, 3)
        if is_killed:
            self.worker.kill()
        else:
            self.worker.stop()
        self.worker.start()
        self.start()
        self.produce(6, 3)
        self.wait_for_committed(test=9)
        self.check_stored(9)

    def test_no_record_is_lost_after_the_committed_offsets_are_reset(self) -> None:
        self.create_topics("test")
        self.start()
        self.produce(0, 3)
        self.wait_for_committed(test=3)
        self.worker.request("PUT", f"/connectors/{NAME}/stop")
        self.worker.request("DELETE", f"/connectors/{NAME}/offsets")
        self.worker.request("PUT", f"/connectors/{NAME}/resume")
        self.produce(3, 3)
        self.wait_for_committed(test=6)
        self.check_stored(6, again=3 if self.reset_loads_again else 0)

    def check_stored(self, count: int, again: int = 0) -> None:
        """Check that the external system has `count` different records, and no duplicates unless they are allowed.

        `again` is the number of records that must be stored twice.
        """
        found = list(self.stored("test"))
        assert len({repr(item) for item in found}) == count
        if self.is_exactly_once:
            assert len(found) == count + again

    def test_record_that_cannot_be_stored_is_sent_to_the_dead_letter_queue(self) -> None:
        if self.poison is None:
            pytest.skip("the sink stores every value")
        self.create_topics("test")
        self.broker.produce("test", [self.value(0), self.poison, self.value(1)])
        self.start(
            errors__tolerance="all",
            errors__deadletterqueue__topic__name=DLQ,
            errors__deadletterqueue__topic__replication__factor="1",
        )
        self.wait_for_committed(test=3)
        assert len(self.stored("test")) == 2
        assert [record.value for record in self.broker.consume(DLQ, 1)] == [self.poison]

    def test_connector_without_new_records_stops_within_the_timeout(self) -> None:
        self.create_topics("test")
        self.start()
        self.produce(0, 1)
        self.wait_for_committed(test=1)
        started_s = time.monotonic()
        self.worker.delete(NAME)
        assert time.monotonic() - started_s < STOP_TIMEOUT_S

    def test_records_of_topics_with_unusual_names_are_stored(self) -> None:
        self.create_topics(*HOSTILE_TOPICS)
        self.start(HOSTILE_TOPICS)
        for number, topic in enumerate(HOSTILE_TOPICS):
            self.produce(number, 2, topic)
        self.wait_for(
            lambda: self.committed() == {(topic, 0): 2 for topic in HOSTILE_TOPICS}, "all offsets are committed"
        )
        assert [len(self.stored(topic)) for topic in HOSTILE_TOPICS] == [2] * len(HOSTILE_TOPICS)
