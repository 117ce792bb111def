"""Tests of the transform class `Python`: results, errors, functions that receive lists, and python.transform.enable."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.api import ConfigErrors, DataError, RetriableError, SourceRecord, Struct
from headrace.data.headers import Headers
from headrace.data.logical import (
    DATE_SCHEMA,
    TIME_NAME,
    TIMESTAMP_NAME,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
)
from headrace.data.schema import INT64_SCHEMA, STRING_SCHEMA, Type, struct
from headrace.plugins.validation import validate_connector
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace.testing import apply
from support.connect_data import is_identical
from support.transforms import make_plugin, records, source_batch, transform_errors

ROW = struct([("a", INT64_SCHEMA), ("b", STRING_SCHEMA)], name="row")
CODE = """
from headrace.api import RetriableError

seen = []

def once(value):
    if value in seen:
        return None
    seen.append(value)
    return value

def route(record):
    return record.replace(topic=f"{record.topic}-{record.value}", key=record.value)

def everything(value, key, topic, partition, timestamp, headers):
    return [value, key, topic, partition, timestamp, [header.key for header in headers]]

def halves(values):
    return [None if value % 2 else value // 2 for value in values]

def too_few(values):
    return values[1:]

def inverse(value):
    number = 1
    return number / value

def retry(value):
    raise RetriableError("later")

def unknown_parameter(other):
    return other
"""
DISTRIBUTED = {
    "group.id": "g", "config.storage.topic": "c", "offset.storage.topic": "o", "status.storage.topic": "s",
}  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return str(path)


def values(expression: str, *items: Any, schema: Any = None) -> list[Any]:
    given = [SourceRecord(topic="t", value=item, value_schema=schema) for item in items]
    return [record.value for record in apply(make_plugin_class(), given, {"expression": expression})]


def make_plugin_class() -> Any:
    return type(make_plugin("Python", expression="value"))


def test_result_of_an_expression_replaces_the_value_and_the_result_none_drops_the_record() -> None:
    assert values("value * 2", 1, 2) == [2, 4]
    assert values("value if value > 1 else None", 1, 2) == [2]
    assert values("{**value, 'n': sum(x for x in value['xs'])}", {"xs": [1, 2]}) == [{"xs": [1, 2], "n": 3}]


def test_record_that_a_function_or_expression_returns_replaces_the_original_record(file: str) -> None:
    given = [SourceRecord(topic="t", value=1), SourceRecord(topic="t", value=2)]
    found = apply(make_plugin_class(), given, {"file": file, "function": "route"})
    assert [(record.topic, record.key, record.value) for record in found] == [("t-1", 1, 1), ("t-2", 2, 2)]
    (tombstone,) = apply(make_plugin_class(), given[:1], {"expression": "record.replace(value=None)"})
    assert tombstone.value is None


def test_python_function_receives_all_attributes_of_a_record(file: str) -> None:
    headers = Headers().add("h", 1)
    given = [SourceRecord(topic="t", value=1, key=2, partition=3, timestamp=4, headers=headers)]
    (found,) = apply(make_plugin_class(), given, {"file": file, "function": "everything"})
    assert found.value == [1, 2, "t", 3, 4, ["h"]]


def test_function_with_a_parameter_named_values_receives_a_list_of_the_values_of_many_records(file: str) -> None:
    transform = make_plugin("Python", file=file, function="halves")
    assert [record.value for record in records(transform.apply_batch(source_batch([1, 2, 3, 4])))] == [1, 2]
    assert transform.apply(SourceRecord(topic="t", value=4)).value == 2
    errors = transform_errors(transform, source_batch([2, "x", 4]))
    assert list(errors) == [1]
    wrong = make_plugin("Python", file=file, function="too_few")
    (error,) = transform_errors(wrong, source_batch([2])).values()
    assert "received 1 values and returned 0 results" in str(error)


def test_schema_of_a_struct_is_kept_for_known_fields_and_derived_for_new_fields() -> None:
    given = [SourceRecord(topic="t", value=Struct(ROW, {"a": 1, "b": "x"}), value_schema=ROW)]

    def result(expression: str) -> Any:
        (record,) = apply(make_plugin_class(), given, {"expression": expression})
        return record

    assert result("value").value_schema is ROW
    changed = result("{**value, 'b': 'y'}")
    assert (changed.value_schema, changed.value) == (ROW, Struct(ROW, {"a": 1, "b": "y"}))
    longer = result("{'b': value['b'], 'price': __import__('decimal').Decimal('1.50')}")
    assert [field.name for field in longer.value_schema.fields] == ["b", "price"]
    assert longer.value_schema.name == "row"
    assert longer.value["price"] == Decimal("1.50")
    assert result("value['a']").value_schema.type is Type.INT64
    with pytest.raises(DataError, match="the new field c is null, and no schema can be derived"):
        result("{**value, 'c': None}")
    with pytest.raises(DataError, match='field: "a"'):
        result("{**value, 'a': 'text'}")


def test_code_reads_dates_as_integers_and_may_return_dates_of_python() -> None:
    schema = struct([("at", TIMESTAMP_SCHEMA), ("day", DATE_SCHEMA)])
    row = Struct(schema, {"at": dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC), "day": dt.date(2026, 1, 1)})

    def result(expression: str, value: Any = row, value_schema: Any = schema) -> Any:
        given = [SourceRecord(topic="t", value=value, value_schema=value_schema)]
        (record,) = apply(make_plugin_class(), given, {"expression": expression})
        return record

    assert result("value if value['at'] > 1767225600000 else None").value == row
    changed = result("{**value, 'at': value['at'].to_datetime().replace(year=2027), 'day': value['day'] + 1}")
    assert changed.value_schema == schema
    assert changed.value.row == [1_798_804_800_000, 20_455]
    assert [type(item) for item in changed.value.row] == [Timestamp, Date]
    moment = "value['at'].to_datetime()"
    added = result(f"{{'year': {moment}.year, 'copy': value['at'], 'time': {moment}.time()}}")
    assert [field.schema.name for field in added.value_schema.fields] == [None, TIMESTAMP_NAME, TIME_NAME]
    assert added.value.row == [2026, 1_767_268_800_000, 43_200_000]
    assert [type(item) for item in added.value.row] == [int, Timestamp, Time]
    whole = result("__import__('datetime').datetime(1970, 1, 2)", 5, INT64_SCHEMA)
    assert whole.value_schema.name == TIMESTAMP_NAME
    assert is_identical(whole.value, Timestamp(86_400_000))
    schemaless = result("{**value, 'day': [__import__('datetime').date(1970, 1, 2)]}", {"a": 1}, None)
    assert is_identical(schemaless.value["day"][0], Date(1))


def test_stateful_function_is_called_once_for_each_record(file: str) -> None:
    transform = make_plugin("Python", file=file, function="once")
    found = records(transform.apply_batch(source_batch([1, 1, 2])))
    found += records(transform.apply_batch(source_batch([2, 3])))
    assert [record.value for record in found] == [1, 2, 3]


def test_error_of_a_function_names_the_file_the_line_and_the_function(file: str) -> None:
    props = {
        "transforms": "ratio", "transforms.ratio.type": "Python", "transforms.ratio.file": file,
        "transforms.ratio.function": "inverse",
    }  # fmt: skip
    line = CODE.splitlines().index("    return number / value") + 1
    with pytest.raises(DataError) as found:
        apply(props, [SourceRecord(topic="t", value=0)])
    assert str(found.value) == (f"file {file}, line {line}, function inverse: ZeroDivisionError: division by zero")
    expression = {"transforms": "x", "transforms.x.type": "Python", "transforms.x.expression": "value['a']"}
    with pytest.raises(DataError) as found:
        apply(expression, [SourceRecord(topic="t", value={})])
    assert str(found.value) == "expression value['a']: KeyError: 'a'"


def test_retriable_error_of_a_function_is_raised_unchanged(file: str) -> None:
    transform = make_plugin("Python", file=file, function="retry")
    with pytest.raises(RetriableError, match="later"):
        transform.apply(SourceRecord(topic="t", value=0))


@pytest.mark.parametrize(
    ("props", "key", "text"),
    [
        ({}, "expression", "set either expression, or file and function"),
        ({"expression": "value", "function": "f"}, "function", "set either expression, or file and function"),
        ({"file": "f.py"}, "function", "file and function must both be set"),
        ({"expression": "value +"}, "expression", "not a Python expression: invalid syntax"),
        ({"expression": "value = 1"}, "expression", "not a Python expression (column 7): invalid syntax"),
        ({"expression": "vaule + 1"}, "expression", "the name vaule is unknown"),
        ({"expression": "[os.getcwd() for x in value]"}, "expression", "the name os is unknown"),
        ({"file": "FILE", "function": "nothing"}, "function", "its functions: once, route"),
        ({"file": "FILE", "function": "unknown_parameter"}, "function", "the parameter other is unknown"),
        ({"file": "/missing/code.py", "function": "f"}, "file", "the file cannot be read: No such file or directory"),
        ({"file": "BROKEN", "function": "f"}, "file", "line 2: invalid syntax"),
        ({"file": "RAISES", "function": "f"}, "file", "line 2: NameError: name 'undefined' is not defined"),
    ],
)
def test_error_for_an_invalid_setting_names_its_configuration_key(
    props: dict[str, str], key: str, text: str, file: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "raises.py").write_text("x = 1\nundefined\n")
    paths = {"FILE": file, "BROKEN": str(tmp_path / "broken.py"), "RAISES": str(tmp_path / "raises.py")}
    config = connector({name: paths.get(value, value) for name, value in props.items()})
    result = validate_connector(config, {})
    errors = {name: value.errors for name, value in result.values.items() if value.errors}
    assert list(errors) == [f"transforms.py.{key}"]
    assert text in errors[f"transforms.py.{key}"][0]


def connector(props: dict[str, str]) -> dict[str, str]:
    own = {f"transforms.py.{name}": value for name, value in props.items()}
    return {
        "name": "c", "connector.class": "FileStreamSource", "topic": "t", "file": "f", "transforms": "py",
        "transforms.py.type": "Python", **own,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("worker", "is_permitted"),
    [
        ({}, True),
        ({"python.transform.enable": "false"}, False),
        (DISTRIBUTED, False),
        ({**DISTRIBUTED, "python.transform.enable": "true"}, True),
    ],
)
def test_python_transform_runs_its_code_only_if_the_worker_permits_the_transform(
    worker: dict[str, str], is_permitted: bool, tmp_path: Path
) -> None:
    """If the worker's property `python.transform.enable` is false, the transform is rejected."""
    marker = tmp_path / "executed"
    (tmp_path / "code.py").write_text(f"open({str(marker)!r}, 'w').close()\ndef f(value): return value\n")
    config = connector({"file": str(tmp_path / "code.py"), "function": "f"})
    errors = validate_connector(config, worker).values["transforms.py.type"].errors
    spec = TaskSpec(connector="c", number=0, config=config, connector_config=config, worker=worker)
    if is_permitted:
        assert errors == []
        assert len(Plugins(spec).make_steps()) == 1
    else:
        assert "python.transform.enable" in errors[0]
        assert "may create connectors may run code" in errors[0]
        with pytest.raises(ConfigErrors, match=r"python\.transform\.enable"):
            Plugins(spec).make_steps()
        for name in ("headrace_transforms.python_code:Python", "headrace_transforms.python_code.Python"):
            other = validate_connector({**config, "transforms.py.type": name}, worker)
            assert "python.transform.enable" in other.values["transforms.py.type"].errors[0]
    assert marker.exists() is is_permitted
