"""The kinds of files in each directory: with the values, the keys and the headers of records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headrace.data.batch import SinkBatch
from headrace.data.json_texts import JsonTexts
from headrace.data.schema import Schema
from headrace_connectors.s3.formats import Encode, encoder_for, header_items
from headrace_connectors.s3.sink_config import S3SinkConfig, format_name


class Side(NamedTuple):
    """A kind of file in each directory: the files with the records' values, keys or headers."""

    suffix: str
    """The text before the extension in the names of these files."""
    format_class: str
    encode: Encode
    read: Callable[[SinkBatch], tuple[Schema | None, Sequence[Any]]]
    """Returns the schema and the values, keys or headers of a batch's records."""


def sides_of(config: S3SinkConfig) -> list[Side]:
    """Return the kinds of files in each directory: values first, then keys and headers if the sink stores them."""
    found = [("", "value", config.format_class, _values)]
    found += [(".keys", "key", config.keys_format_class, _keys)] if config.store_keys else []
    found += [(".headers", "header", config.headers_format_class, _headers)] if config.store_headers else []
    return [
        Side(suffix, name, encoder_for(name, config, f"{part}.converter"), read) for suffix, part, name, read in found
    ]


def encode_side(side: Side, batch: SinkBatch) -> tuple[Schema | None, Sequence[Any]]:
    """Return (schema, encoded records). All records of a file must have this schema, unless it is None."""
    texts = batch.compact
    if side.read is _values and isinstance(texts, JsonTexts):
        return None, texts.texts  # the task accepts texts only if its format is JSON
    schema, items = side.read(batch)
    encoded = side.encode(schema, items)
    return schema if format_name(side.format_class) == "parquet" else None, encoded


def _values(batch: SinkBatch) -> tuple[Schema | None, Sequence[Any]]:
    return batch.value_schema, batch.values


def _keys(batch: SinkBatch) -> tuple[Schema | None, Sequence[Any]]:
    return batch.key_schema, batch.keys if batch.keys is not None else [None] * len(batch)


def _headers(batch: SinkBatch) -> tuple[Schema | None, Sequence[Any]]:
    headers = batch.headers if batch.headers is not None else [()] * len(batch)
    return None, [header_items(each) for each in headers]
