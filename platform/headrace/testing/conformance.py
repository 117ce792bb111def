"""The conformance suite for connectors: test classes that a connector's tests derive from.

    from headrace.testing.conformance import SinkConformance

    class TestLinesSink(SinkConformance):
        plugin = LinesSink

        def config(self) -> dict[str, str]:
            return {"path": str(self.directory / "lines.txt")}

        def stored(self) -> list[str]:
            path = self.directory / "lines.txt"
            return path.read_text().splitlines() if path.exists() else []

pytest then runs every case with a new `directory`. The cases are those that Kafka Connect's users meet: open and close,
restart from an offset, lost acknowledgements, a record that cannot be stored, pause and resume, a rebalance, a stop
within the timeout, validation without the external system, and hostile names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.records import SinkRecord
from headrace.testing.sink_run import LostPartitions, LostPut, Pause, Rebalance, Restart, SinkFault, SinkRun, run_sink
from headrace.testing.source_run import (
    LostAcknowledgement,
    PauseSource,
    RestartSource,
    SourceFault,
    SourceRun,
    run_source,
    stop_while_polling,
)
from headrace.testing.task_configs import connector_class_of

STOP_TIMEOUT_S = 5.0
"""The default of task.shutdown.graceful.timeout.ms."""

HOSTILE_TOPICS = ("a.b-c_d", "UPPER", "x" * 249, "..." + "1", "select")
"""Names that Kafka permits and that external systems may not expect."""


class _Conformance(ABC):
    plugin: ClassVar[type[Any]]
    """The connector class, task class or decorated function."""

    directory: Path
    """A new directory for each case."""

    @pytest.fixture(autouse=True)
    def _set_directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    @abstractmethod
    def config(self) -> dict[str, str]:
        """Return a valid configuration. It is called once in each case, before anything else."""

    def invalid_configs(self) -> Sequence[Mapping[str, str]]:
        """Return configurations that validation must reject; by default, one without any keys if a key is required."""
        return [{}] if self._errors({}) else []

    def _errors(self, props: Mapping[str, str]) -> list[Any]:
        return connector_class_of(self.plugin).config_model.errors(props)

    def test_configuration_is_valid_and_invalid_ones_are_rejected_without_the_external_system(self) -> None:
        """Validation reads no external system: it checks the model alone."""
        assert self._errors(self.config()) == []
        for props in self.invalid_configs():
            with pytest.raises(ConfigErrors):
                connector_class_of(self.plugin).config_model.parse(props)


class SinkConformance(_Conformance):
    """The cases for sinks; every case puts records and compares what the external system contains."""

    is_exactly_once: ClassVar[bool] = False
    """Whether records that are delivered twice are stored once."""

    poison: ClassVar[Any] = None
    """A value that the sink cannot store; None skips the case."""

    @abstractmethod
    def stored(self) -> Sequence[Any]:
        """Return what the external system contains: one item per stored record, in any form with equality."""

    def values(self) -> Sequence[Any]:
        """Return at least five values to store."""
        return [f"value {number}" for number in range(8)]

    def records(self, topic: str = "test", partitions: int = 1) -> list[SinkRecord]:
        """Return the records of `values`, spread over the partitions of a topic."""
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
        """Put records into the sink."""
        return run_sink(self.plugin, props, records, faults=faults, max_poll_records=max_poll_records)

    def test_every_record_is_stored_once(self) -> None:
        run = self.run(self.config(), self.records())
        assert len(self.stored()) == len(self.values())
        assert run.committed == {("test", 0): len(self.values())}
        assert run.calls[0] == "start"
        assert run.calls[-1] == "stop"
        assert run.calls.count("open") == run.calls.count("close") == 1

    def test_stop_without_records_succeeds(self) -> None:
        self.run(self.config(), [])
        assert len(self.stored()) == 0

    def test_several_partitions_are_stored(self) -> None:
        self.run(self.config(), self.records(partitions=3))
        assert len(self.stored()) == len(self.values())

    def test_later_run_stores_only_records_after_the_committed_offset(self) -> None:
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

    def test_pause_and_resume_store_every_record_once(self) -> None:
        self.run(self.config(), self.records(), Pause(1))
        assert len(self.stored()) == len(self.values())

    def test_record_that_cannot_be_stored_does_not_affect_the_others(self) -> None:
        if self.poison is None:
            pytest.skip("the sink stores every value")
        records = self.records()
        records[2] = records[2].replace(value=self.poison)
        run = self.run({**self.config(), "errors.tolerance": "all"}, records)
        assert [record.offset for record, _ in run.reported] == [2]
        assert len(self.stored()) == len(records) - 1
        assert run.committed == {("test", 0): len(records)}

    @pytest.mark.parametrize("topic", HOSTILE_TOPICS)
    def test_records_of_topics_with_hostile_names_are_stored(self, topic: str) -> None:
        self.run(self.config(), self.records(topic))
        assert len(self.stored()) == len(self.values())


class SourceConformance(_Conformance):
    """The cases for sources; every case reads what `produce` has written to the external system."""

    waits_s: ClassVar[float] = STOP_TIMEOUT_S
    """The time in which a blocked `poll` must return after `wake_up`."""

    @abstractmethod
    def produce(self, count: int) -> None:
        """Add that many records to the external system, after `config` was called."""

    def hostile_configs(self) -> Sequence[dict[str, str]]:
        """Return configurations whose names (of files, tables, ...) are hostile; `produce` must write to each of them.

        The suite runs each configuration after setting `self.hostile_index` to its index.
        """
        return []

    hostile_index: int | None = None

    def run(
        self, props: Mapping[str, str], count: int, *faults: SourceFault, offsets: Mapping[Any, Any] | None = None
    ) -> SourceRun:
        """Read records; stops after `count` records, or if there are no more."""
        return run_source(self.plugin, props, records=count, offsets=offsets, faults=faults)

    def identity(self, record: Any) -> Any:
        """Return what identifies a record: by default its source offset and value."""
        return repr((record.source_partition, record.source_offset, record.key, record.value))

    def test_every_record_is_read_once(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100)
        assert len(run.records) == 10
        assert len({self.identity(record) for record in run.records}) == 10
        assert run.calls[0] == "start"
        assert run.calls[-1] == "stop"

    def test_nothing_is_read_from_an_empty_system(self) -> None:
        props = self.config()
        self.produce(0)
        assert self.run(props, 1).records == []

    def test_later_run_reads_only_records_after_the_committed_offset(self) -> None:
        props = self.config()
        self.produce(5)
        first = self.run(props, 100)
        self.produce(5)
        second = self.run(props, 100, offsets=first.offsets)
        assert len(first.records) == len(second.records) == 5
        assert len({self.identity(record) for record in [*first.records, *second.records]}) == 10

    def test_restart_from_a_committed_offset_loses_nothing(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100, RestartSource(after_records=4))
        assert len({self.identity(record) for record in run.records}) == 10

    def test_lost_acknowledgement_is_read_again(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100, LostAcknowledgement(batch=1))
        assert len({self.identity(record) for record in run.records}) == 10

    def test_pause_and_resume_read_every_record_once(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100, PauseSource(after_records=2))
        assert len(run.records) == 10

    def test_blocked_poll_returns_in_time_when_the_task_stops(self) -> None:
        props = self.config()
        self.produce(0)
        assert stop_while_polling(self.plugin, props) < self.waits_s

    def test_hostile_names_are_read(self) -> None:
        configs = self.hostile_configs()
        if not configs:
            pytest.skip("the source's configuration contains no names")
        for index, props in enumerate(configs):
            self.hostile_index = index
            self.produce(3)
            assert len(self.run(props, 100).records) == 3, props
