"""The converters, predicates and transforms of a connector as an object that can be sent to other processes.

The configuration is resolved when the object is created. `open` creates the plug-ins from their classes' Python paths,
because another machine may lack the entry points and the `plugin.path` of the worker.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Self

from headrace.api.record_access import FailedRecord, FetchedRecords, PipelineResult
from headrace.api.transform import Transformation
from headrace.metrics import logs
from headrace.plugins.creation import create, create_converter
from headrace.plugins.plugin_sections import CONVERTER_KEYS, PluginSection, converter_props, converter_section
from headrace.runtime.chain import Step, TransformChain
from headrace.runtime.conversion import Converters, FromBytes, RawPart, original_position
from headrace.runtime.error_policy import ErrorPolicy, Failure
from headrace.runtime.record_access.plugin_files import PluginFiles
from headrace.runtime.task_plugins import Plugins, class_path, load_class
from headrace.runtime.tolerance import RetryWithToleranceOperator


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """The class of a plug-in, and its own configuration. `which` is ``key``, ``value`` or ``header`` for converters."""

    path: str
    props: Mapping[str, str] = field(repr=False)
    which: str = ""
    file_keys: tuple[str, ...] = ()

    @classmethod
    def of(cls, section: PluginSection, props: Mapping[str, str], which: str = "") -> Self:
        """Return the specification of the plug-in that `section` of the configuration `props` configures."""
        own = section.props(props)
        keys = tuple(key for key in section.plugin.file_keys if own.get(key))
        return cls(class_path(section.plugin), own, which, keys)

    @property
    def files(self) -> list[str]:
        """The paths of the files that the configuration names."""
        return [self.props[key] for key in self.file_keys]

    def create(self, files: PluginFiles) -> Any:
        """Create and configure the plug-in. Raises ConfigErrors and any error of `configure`."""
        props = {**self.props, **{key: files.path_of(self.props[key]) for key in self.file_keys}}
        plugin_class = load_class(self.path)
        return create_converter(plugin_class, props, self.which) if self.which else create(plugin_class, props)


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A transform and its predicate."""

    alias: str
    transformation: PluginSpec
    predicate: PluginSpec | None
    negate: bool

    def create(self, files: PluginFiles, plugins: ExitStack) -> Step:
        """Create the transform and its predicate. `plugins` closes them."""
        predicate = None if self.predicate is None else self.predicate.create(files)
        if predicate is not None:
            plugins.callback(predicate.close)
        transformation = self.transformation.create(files)
        plugins.callback(transformation.close)
        transformation.alias = self.alias
        return Step(transformation, predicate, self.negate)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredPipeline:
    """The configuration of a pipeline. Picklable. Its `repr` contains no values of the configuration."""

    converters: tuple[PluginSpec, ...]
    steps: tuple[StepSpec, ...]
    policy: ErrorPolicy
    errors_max: int
    json_texts: bool
    changes_topics: bool
    files: PluginFiles
    secrets: frozenset[str] = field(repr=False)

    @classmethod
    def from_plugins(cls, plugins: Plugins, errors_max: int, *, json_texts: bool) -> Self:
        """Return the pipeline of a task. Raises ConfigErrors and the errors of the plug-ins' `configure`."""
        config = plugins.connector_config
        sections = plugins.step_sections()
        converters: list[tuple[PluginSection, Mapping[str, str]]] = []
        for key in CONVERTER_KEYS:
            props: Any = converter_props(key, config, plugins.worker)
            section = converter_section(key, props)
            assert section is not None
            converters.append((section, props))
        steps = tuple(
            StepSpec(
                alias,
                PluginSpec.of(each.transform, config),
                None if each.predicate is None else PluginSpec.of(each.predicate, config),
                each.negate,
            )
            for alias, each in sections.items()
        )
        specs = tuple(
            PluginSpec.of(section, props, key.removesuffix(".converter"))
            for key, (section, props) in zip(CONVERTER_KEYS, converters, strict=True)
        )
        used = [*specs, *(spec for step in steps for spec in (step.transformation, step.predicate) if spec is not None)]
        classes = [section.plugin for section, _ in converters]
        classes += [found.plugin for each in sections.values() for found in (each.transform, each.predicate) if found]
        return cls(
            converters=specs,
            steps=steps,
            policy=ErrorPolicy.from_config(config),
            errors_max=errors_max,
            json_texts=json_texts,
            changes_topics=any_changes_topics(plugins),
            files=PluginFiles.collect(classes, (path for spec in used for path in spec.files)),
            secrets=frozenset(plugins.resolved_values),
        )

    def open(self) -> OpenPipeline:
        """Create the plug-ins. Raises ConfigErrors and any error of a plug-in's `configure`."""
        logs.secrets.add(self.secrets)
        self.files.activate()
        with ExitStack() as plugins:
            created = [spec.create(self.files) for spec in self.converters]
            for converter in created:
                plugins.callback(converter.close)
            steps = [spec.create(self.files, plugins) for spec in self.steps]
            return OpenPipeline(self, Converters(*created), steps, plugins.pop_all())
        raise AssertionError("unreachable")


class OpenPipeline:
    """The created plug-ins. The failed records of each call are collected, and not tolerated or logged."""

    def __init__(
        self, pipeline: ConfiguredPipeline, converters: Converters, steps: list[Step], plugins: ExitStack
    ) -> None:
        self._plugins = plugins
        self._errors_max = pipeline.errors_max
        self._failures = _Failures(0)
        operator = RetryWithToleranceOperator(
            replace(pipeline.policy, tolerate=True),
            report=lambda failure, part: self._failures.add(failure, part),
            describe=_describe,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            wait_ms=_wait,
            rng=Random(),
        )
        self._from_bytes = FromBytes(converters, operator)
        self._chain = TransformChain(steps, operator)
        if pipeline.json_texts and not self._chain:
            self._from_bytes.keep_json_texts()

    def apply(self, records: FetchedRecords) -> PipelineResult:
        """Convert and transform records. Raises ConnectError if a plug-in fails for the whole batch."""
        if not len(records):
            return PipelineResult(())
        failures = self._failures = _Failures(self._errors_max)
        raw = RawPart(records.topic, records.partition, records.raw)
        try:
            batches = [result for batch in self._from_bytes.convert(raw) for result in self._chain.apply(batch)]
        finally:
            self._failures = _Failures(0)  # the tracebacks of errors reference the records
        return PipelineResult(batches, failures.records(), failures.count, failures.first_offset)

    def close(self) -> None:
        """Close the plug-ins."""
        self._plugins.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class _Failures:
    """The failed records with the smallest offsets, and the number of all failed records."""

    def __init__(self, records_max: int) -> None:
        self._records_max = records_max
        self._failed: list[tuple[int, int, Failure, str, int]] = []  # a heap with the largest offset first
        self.count = 0
        self.first_offset: int | None = None

    def add(self, failure: Failure, part: Any) -> None:
        topic, partition, offset = original_position(part)
        self.count += 1
        self.first_offset = offset if self.first_offset is None else min(offset, self.first_offset)
        item = (-offset, self.count, failure, topic, partition)
        if len(self._failed) < self._records_max:
            heapq.heappush(self._failed, item)
        elif self._failed:
            heapq.heappushpop(self._failed, item)

    def records(self) -> tuple[FailedRecord, ...]:
        return tuple(
            FailedRecord(
                topic,
                partition,
                -negative_offset,
                failure.stage.value,
                failure.class_name,
                failure.error_class,
                failure.message,
                failure.trace,
            )
            for negative_offset, _, failure, topic, partition in sorted(self._failed, reverse=True)
        )


def any_changes_topics(plugins: Plugins) -> bool:
    """Whether a transform may change topics. The transforms are created, because it may depend on their settings."""
    steps = plugins.make_steps()
    try:
        return any(may_change_topics(step.transformation) for step in steps)
    finally:
        for step in steps:
            step.close()


def may_change_topics(transformation: Transformation[Any]) -> bool:
    """Whether a transform may change topics.

    The transform's `changes_topics` applies, unless a subclass of the class that sets it defines another transform
    method.
    """
    if "changes_topics" in vars(transformation):
        return transformation.changes_topics
    for each in type(transformation).__mro__:
        if "changes_topics" in each.__dict__:
            return bool(each.__dict__["changes_topics"])
        if "apply" in each.__dict__ or "apply_batch" in each.__dict__:
            return True
    return True


def _describe(part: Any) -> str:
    topic, partition, offset = original_position(part)
    return f"topic {topic}, partition {partition}, offset {offset}"


def _wait(delay_ms: int) -> bool:
    time.sleep(delay_ms / 1000)
    return True
