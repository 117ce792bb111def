"""Connectors, transforms and predicates as functions: `@source`, `@sink`, `@transform`, `@predicate`.

    class TickConfig(Config):
        topic: str = key("topic", doc="Topic to write to.")

    @source
    def ticks(config: TickConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord | Wait]:
        for number in itertools.count(0 if offset is None else offset["n"] + 1):
            yield SourceRecord(topic=config.topic, value=number, source_offset={"n": number})
            yield wait(1)

Each decorator replaces the function with a plug-in class that has the function's name, module and docstring. The
annotation of the first parameter determines the configuration model. Configurations name the function:
``connector.class=ticks``.
"""

from __future__ import annotations

import inspect
import logging
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, overload

from headrace.api.config import Config, config_def, key
from headrace.api.config_def import Importance
from headrace.api.errors import ConnectError
from headrace.api.predicate import Predicate
from headrace.api.task import SinkTask, SourceTask
from headrace.api.transform import Transformation
from headrace.data.records import ConnectRecord, SourceRecord
from headrace.data.sink_records import SinkRecords

log = logging.getLogger(__name__)

_C = TypeVar("_C", bound=Config)
_POLL_RECORDS_MAX = 500
_POLL_SECONDS_MAX = 0.05


@dataclass(frozen=True, slots=True)
class Wait:
    """A value that a source generator yields to wait for that many seconds. `wait` creates it."""

    seconds: float


def wait(seconds: float) -> Wait:
    """Return a value that a source generator yields to wait. If the task is stopped, the wait ends early."""
    return Wait(seconds)


Offset = Mapping[str, Any]
SourcePartition = Mapping[str, Any]
_Generator = Iterator[SourceRecord | Wait] | Iterator[SourceRecord]
_SourceFunction = Callable[[_C, Offset | None], _Generator]
_PartitionedSourceFunction = Callable[[_C, Offset | None, SourcePartition], _Generator]


@overload
def source(function: _SourceFunction[_C], /) -> type[SourceTask[_C]]: ...
@overload
def source(
    *, partitions: Callable[[_C], Sequence[SourcePartition]]
) -> Callable[[_PartitionedSourceFunction[_C]], type[SourceTask[_C]]]: ...
def source(function: Any = None, /, *, partitions: Any = None) -> Any:
    """Make a source connector from a generator function.

    The function receives the configuration and the last committed offset (None at first). It yields records with a
    topic and a `source_offset`. After a restart, the function continues after the record with the committed
    `source_offset`. A record without a `source_offset` has the last yielded offset, and causes one warning. The
    function may yield `wait(seconds)`. When it returns, it is called again after ``poll.interval.ms`` with the offset
    of the last record that it yielded. While the connector is paused, the generator is not advanced. When the task
    stops, the generator is closed at its next `yield`, so its `finally` blocks run.

    Without `partitions` there is one task and one source partition. ``partitions(config)`` returns several source
    partitions, which are distributed to at most ``tasks.max`` tasks. The generator function then receives its source
    partition as the third argument. ``partitions`` is called whenever a task starts.
    """
    if partitions is not None:
        return lambda each: _source_class(each, partitions)
    return _source_class(function, None)


def sink(function: Callable[[_C, SinkRecords], None], /) -> type[SinkTask[_C]]:
    """Make a sink connector from a function that receives the configuration and the records of a poll.

    When the function returns, the records must be durable, because their offsets are then committed. The function
    raises errors as `SinkTask.put` does. It is not called if a poll returned no records.
    """
    plugin_class: type[SinkTask[_C]] = _plugin_class(function, _FunctionSinkTask, 2)
    return plugin_class


def transform(function: Callable[[_C, Any], ConnectRecord | None], /) -> type[Transformation[_C]]:
    """Make a transform from a function that receives the configuration and a record: see `Transformation.apply`."""
    plugin_class: type[Transformation[_C]] = _plugin_class(function, _FunctionTransformation, 2)
    return plugin_class


def predicate(function: Callable[[_C, Any], bool], /) -> type[Predicate[_C]]:
    """Make a predicate from a function that receives the configuration and a record: see `Predicate.test`."""
    plugin_class: type[Predicate[_C]] = _plugin_class(function, _FunctionPredicate, 2)
    return plugin_class


class FunctionSourceConfig(Config):
    """The configuration key that `@source` adds to the configuration of a source."""

    poll_interval_ms: int = key(
        "poll.interval.ms",
        default=5000,
        at_least=0,
        doc="Time in ms between the end of the function and its next call.",
        importance=Importance.LOW,
    )


class _Reader:
    """The generator of one source partition, with its offset and the time at which it is due."""

    __slots__ = ("due_s", "generator", "offset", "partition")

    def __init__(self, partition: SourcePartition, offset: Offset | None) -> None:
        self.partition = partition
        self.offset = offset
        self.generator: Any = None
        self.due_s = 0.0


class _FunctionSourceTask(SourceTask[Config]):
    """Advances the generators of a source function, one for each source partition of the task."""

    abstract = True
    function: ClassVar[Callable[..., Any]]
    partitions: ClassVar[Callable[[Any], Sequence[SourcePartition]] | None] = None

    @classmethod
    def task_configs(cls, config: Config, max_tasks: int) -> list[dict[str, str]]:
        """Return the task configurations of the connector: see `connector_for`."""
        partitions = cls.partitions
        count = 1 if partitions is None else max(1, min(max_tasks, len(partitions(config))))
        old = {"source.function.tasks": str(count)}  # for workers of version 0.1.0, during a rolling upgrade
        return [config.originals | old for _ in range(count)]

    def start(self, config: Config) -> None:
        """Read the committed offsets."""
        self._interval_s = _poll_interval_s(config)
        partitions = self._own_partitions(config)
        offsets = self.context.offsets.read_all(partitions)
        self._readers = [_Reader(each, offset) for each, offset in zip(partitions, offsets, strict=True)]
        self._has_warned = False
        self._error: Exception | None = None  # `poll` raises it after it has returned the earlier records

    def poll(self) -> Sequence[SourceRecord] | None:
        """Advance each generator that is due. Return the yielded records, or wait and return None."""
        started_s = self.context.monotonic()
        records: list[SourceRecord] = []
        for reader in self._readers:
            if reader.due_s <= started_s and self._error is None:
                records += self._advance(reader)
        if self._error is not None and not records:
            error, self._error = self._error, None
            raise error
        if not records:
            due_s = min((reader.due_s for reader in self._readers), default=started_s + 1)
            self.context.wait(min(max(due_s - self.context.monotonic(), 0.0), 1.0))
        return records or None

    def stop(self) -> None:
        """Close all generators, even if one of them raises an error."""
        with ExitStack() as generators:
            for reader in getattr(self, "_readers", ()):
                if reader.generator is not None:
                    generators.callback(reader.generator.close)

    def _advance(self, reader: _Reader) -> list[SourceRecord]:
        """Return the next records of a generator. An error ends the generator, and is stored in `_error`."""
        records: list[SourceRecord] = []
        deadline_s = self.context.monotonic() + _POLL_SECONDS_MAX
        try:
            while len(records) < _POLL_RECORDS_MAX and (not records or self.context.monotonic() < deadline_s):
                item = self._next(reader)
                if isinstance(item, Wait):
                    reader.due_s = self.context.monotonic() + item.seconds
                    break
                records.append(self._record(reader, item))
        except Exception as error:  # noqa: BLE001 - poll raises it
            reader.generator = None
            self._error = error
        return records

    def _next(self, reader: _Reader) -> object:
        """Return the generator's next item.

        If the generator has ended, return a wait until the function is called again.
        """
        if reader.generator is None:
            reader.generator = self._call(reader)
        try:
            return next(reader.generator)
        except StopIteration:
            reader.generator = None
            return Wait(self._interval_s)

    def _call(self, reader: _Reader) -> Any:
        function = type(self).function
        arguments: tuple[Any, ...] = (self.config, reader.offset)
        generator = function(*arguments, reader.partition) if type(self).partitions else function(*arguments)
        if not hasattr(generator, "__next__"):
            raise ConnectError(f"The source function {_path(function)} must be a generator: it must yield its records")
        return generator

    def _record(self, reader: _Reader, record: object) -> SourceRecord:
        if not isinstance(record, SourceRecord):
            raise ConnectError(
                f"The source function {_path(type(self).function)} yielded {type(record).__name__}: "
                "it must yield SourceRecord objects and wait(seconds)"
            )
        if record.source_offset is None:
            self._warn_of_missing_offset(reader)
            record = record.replace(source_offset=reader.offset)
        reader.offset = record.source_offset
        return record.replace(source_partition=reader.partition)

    def _warn_of_missing_offset(self, reader: _Reader) -> None:
        """Log a warning, once per task: the author may have forgotten the offset, and a restart repeats the record."""
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "Source function %s yielded a record without source_offset: its offset is %s, that of the record "
                "before it. After a restart, the function continues after this offset and may repeat records",
                _path(type(self).function),
                reader.offset,
            )

    def _own_partitions(self, config: Config) -> list[SourcePartition]:
        """Return this task's source partitions.

        With n tasks, this is every n-th partition, starting at the task's number.
        """
        partitions = type(self).partitions
        if partitions is None:
            return [{"source": type(self).__name__}]
        return list(partitions(config))[self.context.task_number :: self.context.task_count]


class _FunctionSinkTask(SinkTask[Config]):
    """Calls a sink function."""

    abstract = True
    function: ClassVar[Callable[..., Any]]

    def put(self, records: SinkRecords) -> None:
        """Call the function, unless there are no records."""
        if len(records):
            type(self).function(self.config, records)


class _FunctionTransformation(Transformation[Config]):
    """Calls a transform function."""

    abstract = True
    function: ClassVar[Callable[..., Any]]

    def apply(self, record: Any) -> ConnectRecord | None:
        """Call the function."""
        result: ConnectRecord | None = type(self).function(self.config, record)
        return result


class _FunctionPredicate(Predicate[Config]):
    """Calls a predicate function."""

    abstract = True
    function: ClassVar[Callable[..., Any]]

    def test(self, record: ConnectRecord) -> bool:
        """Call the function."""
        return bool(type(self).function(self.config, record))


def _source_class(function: Callable[..., Any], partitions: Any) -> Any:
    body = {} if partitions is None else {"partitions": staticmethod(partitions)}
    return _plugin_class(
        function, _FunctionSourceTask, 2 if partitions is None else 3, model=_with_poll_interval, body=body
    )


def _plugin_class(
    function: Callable[..., Any],
    base: Any,
    parameters: int,
    *,
    model: Callable[[type[Config]], type[Config]] = lambda declared: declared,
    body: Mapping[str, Any] = types.MappingProxyType({}),
) -> Any:
    declared = _config_model(function, parameters)
    attributes = {
        **body,
        "__doc__": function.__doc__,
        "__module__": function.__module__,
        "__qualname__": function.__qualname__,
        "function": staticmethod(function),
        "abstract": False,
    }
    plugin_class = types.new_class(function.__name__, (base,), exec_body=lambda namespace: namespace.update(attributes))
    plugin_class.config_model = model(declared)  # type: ignore[attr-defined]
    return plugin_class


def _config_model(function: Callable[..., Any], parameters: int) -> type[Config]:
    """Return the model of the first parameter. Raises TypeError if the function's parameters are wrong."""
    found = list(inspect.signature(function).parameters.values())
    if len(found) != parameters:
        raise TypeError(f"{_path(function)} must have {parameters} parameters, of which the first is the configuration")
    model = found[0].annotation
    if isinstance(model, str):  # a string because of `from __future__ import annotations`
        with suppress(NameError):
            model = eval(model, function.__globals__)
    if not (isinstance(model, type) and issubclass(model, Config)):
        raise TypeError(
            f"{_path(function)}: annotate the parameter {found[0].name} with a subclass of headrace.api.Config that is "
            "defined at the top of the module"
        )
    return model


def _with_poll_interval(model: type[Config]) -> type[Config]:
    if "poll.interval.ms" in config_def(model).keys:
        return model
    return type(
        model.__name__, (model, FunctionSourceConfig), {"__module__": model.__module__, "__doc__": model.__doc__}
    )


def _poll_interval_s(config: Config) -> float:
    interval_ms: int = next(
        getattr(config, name) for name, field in type(config).model_fields.items() if field.alias == "poll.interval.ms"
    )
    return interval_ms / 1000


def _path(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{function.__qualname__}"
