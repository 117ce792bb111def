"""The conformance suite for sources: it runs the task in memory, with `run_source`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from headrace.data.values import validate
from headrace.testing.conformance.base import STOP_TIMEOUT_S, Conformance
from headrace.testing.source_run import (
    LostAcknowledgement,
    PauseSource,
    RestartSource,
    SourceFault,
    SourceRun,
    run_source,
    stop_while_polling,
)


class SourceConformance(Conformance):
    """The cases for sources. Every case reads what `produce` has written to the external system."""

    waits_s: ClassVar[float] = STOP_TIMEOUT_S
    """The time in which a blocked `poll` must return after `wake_up`."""

    def produce(self, count: int) -> None:
        """Add `count` records to the external system. The suite calls this method after `config`."""
        raise NotImplementedError(f"{type(self).__name__} must define the method `produce`")

    def hostile_configs(self) -> Sequence[dict[str, str]]:
        """Return configurations with unusual names of files, tables or other objects, e.g. with special characters.

        For each configuration, the suite sets `self.hostile_index` to the index of the configuration, and calls
        `produce`. Then `produce` must write to the file, table or other object that the configuration names.
        """
        return []

    hostile_index: int | None = None

    def run(
        self, props: Mapping[str, str], count: int, *faults: SourceFault, offsets: Mapping[Any, Any] | None = None
    ) -> SourceRun:
        """Run the source with `run_source` until it has read `count` records, or until no records are left."""
        return run_source(self.plugin, props, records=count, offsets=offsets, faults=faults)

    def identity(self, record: Any) -> Any:
        """Return a value that identifies a record: by default its source partition, source offset, key and value."""
        return repr((record.source_partition, record.source_offset, record.key, record.value))

    def test_every_record_is_read_once(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100)
        assert len(run.records) == 10
        assert len({self.identity(record) for record in run.records}) == 10
        assert run.calls[0] == "start"
        assert run.calls[-1] == "stop"

    def test_keys_and_values_of_records_fit_their_schemas(self) -> None:
        props = self.config()
        self.produce(10)
        for record in self.run(props, 100).records:
            for schema, item in ((record.key_schema, record.key), (record.value_schema, record.value)):
                if schema is not None:
                    validate(schema, item)

    def test_no_records_are_read_from_an_empty_external_system(self) -> None:
        props = self.config()
        self.produce(0)
        assert self.run(props, 1).records == []

    def test_task_that_starts_at_a_committed_offset_reads_only_later_records(self) -> None:
        props = self.config()
        self.produce(5)
        first = self.run(props, 100)
        self.produce(5)
        second = self.run(props, 100, offsets=first.offsets)
        assert len(first.records) == len(second.records) == 5
        assert len({self.identity(record) for record in [*first.records, *second.records]}) == 10

    def test_no_record_is_lost_after_a_restart_from_a_committed_offset(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100, RestartSource(after_records=4))
        assert len({self.identity(record) for record in run.records}) == 10

    def test_records_with_a_lost_acknowledgement_are_read_again(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100, LostAcknowledgement(batch=1))
        assert len({self.identity(record) for record in run.records}) == 10

    def test_every_record_is_read_once_after_a_pause(self) -> None:
        props = self.config()
        self.produce(10)
        run = self.run(props, 100, PauseSource(after_records=2))
        assert len(run.records) == 10

    def test_blocked_poll_returns_within_the_timeout_when_the_task_stops(self) -> None:
        props = self.config()
        self.produce(0)
        assert stop_while_polling(self.plugin, props) < self.waits_s

    def test_records_are_read_if_the_configuration_contains_unusual_names(self) -> None:
        configs = self.hostile_configs()
        if not configs:
            pytest.skip("the source's configuration contains no names")
        for index, props in enumerate(configs):
            self.hostile_index = index
            self.produce(3)
            assert len(self.run(props, 100).records) == 3, props
