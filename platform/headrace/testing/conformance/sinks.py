"""The conformance suite for sinks: it runs the task in memory, with `run_sink`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from headrace.data.records import SinkRecord
from headrace.testing.conformance.base import HOSTILE_TOPICS, Conformance
from headrace.testing.sink_run import LostPartitions, LostPut, Pause, Rebalance, Restart, SinkFault, SinkRun, run_sink


class SinkConformance(Conformance):
    """The cases for sinks. Every case puts records and checks the contents of the external system."""

    is_exactly_once: ClassVar[bool] = False
    """Whether records that are delivered twice are stored once."""

    poison: ClassVar[Any] = None
    """A value that the sink cannot store; None skips the case."""

    def stored(self) -> Sequence[Any]:
        """Return the records that the external system contains, as items of any type that supports `==`."""
        raise NotImplementedError(f"{type(self).__name__} must define the method `stored`")

    def values(self) -> Sequence[Any]:
        """Return at least five record values that the sink can store."""
        return [f"value {number}" for number in range(8)]

    def records(self, topic: str = "test", partitions: int = 1) -> list[SinkRecord]:
        """Return a record for each of `values`, distributed over the partitions of a topic."""
        counts = [0] * partitions
        found = []
        for number, value in enumerate(self.values()):
            partition = number % partitions
            found.append(
                SinkRecord(topic=topic, partition=partition, offset=counts[partition], value=value, timestamp=number)
            )
            counts[partition] += 1
        return found

    def run(
        self, props: Mapping[str, str], records: Sequence[Any], *faults: SinkFault, max_poll_records: int = 3
    ) -> SinkRun:
        """Run the sink with these records by calling `run_sink`."""
        return run_sink(self.plugin, props, records, faults=faults, max_poll_records=max_poll_records)

    def test_every_record_is_stored_once(self) -> None:
        run = self.run(self.config(), self.records())
        assert len(self.stored()) == len(self.values())
        assert run.committed == {("test", 0): len(self.values())}
        assert run.calls[0] == "start"
        assert run.calls[-1] == "stop"
        assert run.calls.count("open") == run.calls.count("close") == 1

    def test_task_without_records_stops_without_an_error(self) -> None:
        self.run(self.config(), [])
        assert len(self.stored()) == 0

    def test_records_of_several_partitions_are_stored(self) -> None:
        self.run(self.config(), self.records(partitions=3))
        assert len(self.stored()) == len(self.values())

    def test_task_that_starts_at_a_committed_offset_stores_only_later_records(self) -> None:
        props, records = self.config(), self.records()
        self.run(props, records[:4])
        run_sink(self.plugin, props, records, committed={("test", 0): 4})
        assert len(self.stored()) == len(records)

    @pytest.mark.parametrize(
        "fault", [Rebalance(2), LostPartitions(2), Restart(2), LostPut(2)], ids=lambda fault: type(fault).__name__
    )
    def test_no_record_is_lost_after_a_fault(self, fault: SinkFault) -> None:
        self.run(self.config(), self.records(), fault)
        found = list(self.stored())
        assert len({repr(item) for item in found}) == len(self.values())
        if self.is_exactly_once:
            assert len(found) == len(self.values())

    def test_every_record_is_stored_once_after_a_pause(self) -> None:
        self.run(self.config(), self.records(), Pause(1))
        assert len(self.stored()) == len(self.values())

    def test_record_that_cannot_be_stored_does_not_affect_other_records(self) -> None:
        if self.poison is None:
            pytest.skip("the sink stores every value")
        records = self.records()
        records[2] = records[2].replace(value=self.poison)
        run = self.run({**self.config(), "errors.tolerance": "all"}, records)
        assert [record.offset for record, _ in run.reported] == [2]
        assert len(self.stored()) == len(records) - 1
        assert run.committed == {("test", 0): len(records)}

    @pytest.mark.parametrize("topic", HOSTILE_TOPICS)
    def test_records_of_topics_with_unusual_names_are_stored(self, topic: str) -> None:
        self.run(self.config(), self.records(topic))
        assert len(self.stored()) == len(self.values())
