"""Example plug-ins: a source connector, a sink connector and a transform, each written as a function.

Set `plugin.path=configs/plugins` in the worker's configuration. Connector configurations name the functions:

    connector.class=countdown                   connector.class=lines
    topic=countdown                             topics=countdown
    from=10                                     path=countdown.txt
    transforms=square
    transforms.square.type=square
    transforms.square.field=n

A plug-in imports only `headrace.api` and `headrace.data`. If several plug-ins have the same name, add the module:
`countdown:square`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.api import Config, ConnectRecord, DataError, SinkRecords, SourceRecord, key, sink, source, transform


class CountdownConfig(Config):
    """Configuration of the source."""

    topic: str = key("topic", doc="Topic to write to.", non_empty=True)
    start: int = key("from", default=10, at_least=0, doc="First number to send. The last number is 0.")


@source
def countdown(config: CountdownConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord]:
    """Send the numbers from `from` down to 0. After a restart, continue after the last committed number."""
    first = config.start if offset is None else offset["n"] - 1
    for number in range(first, -1, -1):
        yield SourceRecord(topic=config.topic, value={"n": number}, source_offset={"n": number})


class LinesConfig(Config):
    """Configuration of the sink."""

    path: str = key("path", doc="File to append to.", non_empty=True)


@sink
def lines(config: LinesConfig, records: SinkRecords) -> None:
    """Append a line per record. After a crash, records after the last committed offsets are delivered again."""
    with open(config.path, "a", encoding="utf-8") as file:
        file.writelines(f"{record.topic} {record.offset} {record.value}\n" for record in records)


class SquareConfig(Config):
    """Configuration of the transform."""

    field: str = key("field", doc="Name of the field with the number to square.", non_empty=True)


@transform
def square(config: SquareConfig, record: ConnectRecord) -> ConnectRecord:
    """Square the number in the configured field. `errors.tolerance` applies to records without such a number."""
    value = record.value
    if not isinstance(value, dict) or not isinstance(value.get(config.field), int):
        raise DataError(f"field {config.field} is missing or not an integer in the value {value!r:.60}")
    return record.replace(value={**value, config.field: value[config.field] ** 2})
