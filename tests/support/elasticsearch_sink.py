"""Sends records to an Elasticsearch sink that writes to a real server, and reads the mappings that the sink creates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.data.records import SinkRecord
from headrace.data.schema import Schema
from headrace.data.struct import Struct
from headrace.testing import run_sink
from headrace_connectors.elasticsearch.sink import ElasticsearchSinkConnector
from support.search_server import SearchServer


def document(offset: int, value: Any, schema: Schema | None = None, topic: str = "items", **more: Any) -> SinkRecord:
    if schema is not None:
        value = Struct(schema, value)
    return SinkRecord(
        topic=topic, partition=0, offset=offset, timestamp=1000 + offset, value=value, value_schema=schema, **more
    )


def props_of(server: SearchServer, **props: str) -> dict[str, str]:
    settings = {"connection.url": server.url, "read.timeout.ms": "60000", "key.ignore": "true", "schema.ignore": "true"}
    return settings | {key.replace("__", "."): value for key, value in props.items()}


def put(server: SearchServer, records: Sequence[SinkRecord], **props: str) -> Any:
    return run_sink(ElasticsearchSinkConnector, props_of(server, **props), records)


def properties(server: SearchServer, index: str) -> dict[str, Any]:
    found: dict[str, Any] = server.request("GET", f"/{index}/_mapping")[index]["mappings"].get("properties", {})
    return found
