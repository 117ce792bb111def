"""Tests of mappings, schema changes and rejected documents of the Elasticsearch sink with real servers.

The server is OpenSearch 2. Tests with the mark `prove` use an Elasticsearch 8 server.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.logical import DATE_SCHEMA
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    map_of,
    struct,
)
from support import search_server
from support.elasticsearch_sink import document, properties, props_of, put
from support.elasticsearch_task import put_until_error
from support.search_server import SearchServer

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(search_server.OPENSEARCH, id="opensearch"),
        pytest.param(search_server.ELASTICSEARCH, id="elasticsearch", marks=pytest.mark.prove),
    ],
)
def running_server(request: pytest.FixtureRequest) -> Iterator[SearchServer]:
    with search_server.running(request.param, flags=search_server.SHORT_RUN_FLAGS) as server:
        yield server


@pytest.fixture
def server(running_server: SearchServer) -> SearchServer:
    running_server.clear()
    return running_server


def test_mapping_contains_the_type_and_the_default_of_each_field(server: SearchServer) -> None:
    schema = struct(
        [
            ("int8", INT8_SCHEMA), ("int16", INT16_SCHEMA), ("int64", INT64_SCHEMA), ("float32", FLOAT32_SCHEMA),
            ("float64", FLOAT64_SCHEMA), ("boolean", BOOLEAN_SCHEMA), ("bytes", BYTES_SCHEMA),
            ("string", STRING_SCHEMA), ("default", INT32_SCHEMA.replace(optional=True, default=7)),
            ("map", map_of(INT32_SCHEMA, STRING_SCHEMA)),
        ]
    )  # fmt: skip
    value = {
        "int8": 1, "int16": 2, "int64": 3, "float32": 0.5, "float64": 1.5, "boolean": True, "bytes": b"x",
        "string": "s", "default": 1, "map": {1: "a"},
    }  # fmt: skip
    put(server, [document(0, value, schema)], schema__ignore="false")
    text = {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}}
    assert properties(server, "items") == {
        "int8": {"type": "byte"},
        "int16": {"type": "short"},
        "int64": {"type": "long"},
        "float32": {"type": "float"},
        "float64": {"type": "double"},
        "boolean": {"type": "boolean"},
        "bytes": {"type": "binary"},
        "string": text,
        "default": {"type": "integer", "null_value": 7},
        "map": {"properties": {"key": {"type": "integer"}, "value": text}},
    }
    assert server.documents("items")["items+0+0"] == value | {"bytes": "eA==", "map": [{"key": 1, "value": "a"}]}


def test_schema_change_adds_fields_to_the_mapping_but_changes_no_type(server: SearchServer) -> None:
    """The rule is in the README. A value with another type is stored if the server can convert it."""
    first = struct([("id", INT32_SCHEMA), ("name", STRING_SCHEMA)])
    second = struct([("id", INT64_SCHEMA), ("day", DATE_SCHEMA), ("note", STRING_SCHEMA)])
    third = struct([("id", STRING_SCHEMA)])
    records = [
        document(0, {"id": 0, "name": "x"}, first),
        document(1, {"id": 1, "day": dt.date(1970, 1, 2), "note": "y"}, second),
        document(2, {"id": "2"}, third),
        document(3, {"id": "three"}, third),
        document(4, {"id": 4, "name": "z"}, first),
    ]
    options = {"schema__ignore": "false", "behavior__on__malformed__documents": "WARN", "errors__tolerance": "all"}
    run = put(server, records, **options)
    types = {name: each["type"] for name, each in properties(server, "items").items()}
    assert types == {"id": "integer", "name": "text", "day": "long", "note": "text"}
    assert server.documents("items") == {
        "items+0+0": {"id": 0, "name": "x"},
        "items+0+1": {"id": 1, "day": 86400000, "note": "y"},
        "items+0+2": {"id": "2"},
        "items+0+4": {"id": 4, "name": "z"},
    }
    ((rejected, error),) = run.reported
    assert rejected.offset == 3
    field = "field id: the type of the value is string, and the type of the field in the index is integer"
    assert re.search(
        r"rejected record items-0 at offset 3: (mapper|document)_parsing_exception, status 400: ", str(error)
    )
    assert str(error).endswith(field)
    assert run.committed == {("items", 0): 5}


MAPPING = {"n": {"type": "integer"}, "o": {"properties": {"p": {"type": "date"}}}, "k": {"type": "keyword"}}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"n": "secret"},
            "field n: the type of the value is string, and the type of the field in the index is integer",
        ),
        (
            {"n": 3_000_000_000},
            "field n: the type of the value is int64, and the type of the field in the index is integer",
        ),
        (
            {"o": {"p": "x"}},
            "field o.p: the type of the value is string, and the type of the field in the index is date",
        ),
        ({"o": 5}, "field o: the type of the value is int64, and the type of the field in the index is object"),
        (
            {"z": 1.5},
            "field z: the type of the value is float64, and the index has no such field, and its mapping is strict",
        ),
    ],
)
def test_error_for_a_rejected_document_names_the_field_the_type_of_its_value_and_its_type_in_the_index(
    server: SearchServer, value: Any, text: str
) -> None:
    server.request("PUT", "/items", {"mappings": {"dynamic": "strict", "properties": MAPPING}})
    with pytest.raises(ConnectError, match=re.escape(f"status 400: {text} (behavior")) as caught:
        put_until_error(props_of(server), [document(0, value)])
    assert "secret" not in str(caught.value)


def test_error_for_a_string_that_is_too_long_for_a_keyword_names_the_field(server: SearchServer) -> None:
    server.request("PUT", "/items", {"mappings": {"properties": MAPPING}})
    requirement = "the index stores at most 32766 bytes of it as one term|the type of the field in the index is keyword"
    with pytest.raises(ConnectError, match=f"field k: the type of the value is string, and ({requirement})"):
        put_until_error(props_of(server), [document(0, {"k": "x" * 40_000})])


def test_error_for_a_rejected_document_contains_its_value_if_log_sensitive_data_is_true(server: SearchServer) -> None:
    server.request("PUT", "/items", {"mappings": {"properties": MAPPING}})
    with pytest.raises(
        ConnectError, match=r"Preview of field's value: 'secret'.*field n: the type of the value is str"
    ):
        put_until_error(props_of(server, log__sensitive__data="true"), [document(0, {"n": "secret"})])
