"""Warnings about values of a connector's configuration that are valid, but whose effect often surprises users.

The values have the same effect in Apache Kafka, so headrace only warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace.api.config import Config
from headrace.api.connector import Connector, SinkConnector
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.api.task import Task
from headrace.plugins.connector_config import framework_value
from headrace.plugins.creation import DEFAULT_CONVERTERS, find_converter
from headrace.plugins.plugin_sections import PluginSection, Props, aliases

_HEADER_CONVERTER = "header.converter"
_QUEUE = "errors.deadletterqueue.topic.name"


def value_warnings(
    connector_class: type[Connector], sections: list[PluginSection], props: Props, worker: Mapping[str, str]
) -> Iterator[str]:
    """Yield a warning for each value with a surprising effect. Yield none for sections that are invalid."""
    task_class = getattr(connector_class, "task_class", Task)
    reader = None  # the key that makes the connector read the values of headers
    for section in sections:
        try:
            config: Config = section.model.parse(section.props(props))
        except ConfigErrors:
            continue
        for key, reason in config.value_warnings(task_class).items():
            name = section.prefix + key
            yield f"Configuration {name}={props.get(name, '(default)')}: {reason}"
        if config.reads_header_values:
            reader = reader or f"{section.type_key}={props.get(section.type_key)}"
    if issubclass(connector_class, SinkConnector):
        yield from _header_converter_warnings(reader, props, worker)
    yield from _tolerance_warnings(props)
    yield from _predicate_warnings(props)


def _tolerance_warnings(props: Props) -> Iterator[str]:
    """Yield a warning if failed records are skipped, and neither the log nor a topic contains them."""
    try:
        is_silent = framework_value(props, "errors.tolerance") == "all" and not (
            framework_value(props, "errors.log.enable") or (props.get(_QUEUE) or "").strip()
        )
    except ConfigError:  # the key's own validator reports it
        return
    if is_silent:
        yield (
            "Configuration errors.tolerance=all: the worker skips failed records, and neither logs nor stores them. To "
            f"find them, set errors.log.enable=true or {_QUEUE}"
        )


def _predicate_warnings(props: Props) -> Iterator[str]:
    """Yield a warning for each predicate that no transform has: a transform without a predicate changes all records."""
    used = {(props.get(f"transforms.{alias}.predicate") or "").strip() for alias in aliases(props, "transforms")}
    for alias in aliases(props, "predicates"):
        if alias not in used:
            yield (
                f"Configuration predicates: the predicate {alias} has no effect; set transforms.NAME.predicate={alias} "
                "for the transform NAME"
            )


def _header_converter_warnings(reader: str | None, props: Props, worker: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning if SimpleHeaderConverter changes the text of headers that the connector reads."""
    own = props.get(_HEADER_CONVERTER)
    name = own or worker.get(_HEADER_CONVERTER) or DEFAULT_CONVERTERS[_HEADER_CONVERTER]
    try:
        is_simple = find_converter(name, "header") is find_converter(DEFAULT_CONVERTERS[_HEADER_CONVERTER], "header")
    except ConnectError:
        return
    if is_simple and (own or reader):
        reading = f", and {reader} reads headers" if reader else ""
        yield (
            f"Configuration {_HEADER_CONVERTER}={name}{reading}: this converter infers types from the text of headers, "
            "for example, 00123 becomes the number 123. To keep the text of headers, set "
            f"{_HEADER_CONVERTER}=org.apache.kafka.connect.storage.StringConverter"
        )
