"""Generates connectors with transforms, their topics, and the rows that the S3 sink would write.

Tests of other sinks compare their rows with these rows. A `ParityConnector` has many topics, each with its own
transforms: the predicate TopicNameMatches selects them. The first transforms apply to all topics, and have the other
built-in predicates. A seed determines everything.

The rows come from the code of the S3 sink's path: the converters, the transform chain, and the S3 sink's JSON format.
`support.table_rows` converts rows of tables to the same form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

from headrace.api.errors import RecordErrors
from headrace.data.batch import SinkBatch
from headrace.data.schema import Schema, Type
from headrace.runtime.chain import TransformChain
from headrace.runtime.conversion import FromBytes, RawPart, original_position
from headrace.runtime.error_policy import Failure
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace.runtime.tolerance import RetryWithToleranceOperator
from headrace_broker.records.columns import RecordColumns
from headrace_connectors.s3.sides import encode_side, sides_of
from headrace_connectors.s3.sink_config import S3SinkConfig
from support.errors import error_policy
from support.parity_records import FIELDS, InputRecord, draw_records
from support.table_rows import without_nulls

TRANSFORMS_MAX = 3  # of a topic, without the one that changes the topic
_DRAWS_MAX = 60
_CONNECT = "org.apache.kafka.connect.transforms."
_CONFLUENT = "io.confluent.connect.transforms."
_INVALID_IN_NAMES = frozenset(" ,;{}()\n\t=")


@dataclass(frozen=True)
class ExpectedRow:
    """A row that the S3 sink would write, as JSON values. Numbers with a fraction are Decimals.

    `topic` is the topic to which transforms changed the record's topic. `value` is None for a tombstone.
    """

    topic: str
    offset: int
    value: Any
    key: Any
    headers: Any

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of the table's row that are not null. A value that is not an object has the column `value`."""
        if self.value is None:
            return {}
        return without_nulls(self.value if isinstance(self.value, dict) else {"value": self.value})


@dataclass(frozen=True)
class ParityTopic:
    """A topic, the transforms of its records, and the expected results.

    `ddl` declares the columns of a topic whose records have no schema. `failed` contains the offsets of the records for
    which a transform fails. Records that are in neither `rows` nor `failed` are dropped.
    """

    name: str
    has_schema: bool
    records: tuple[InputRecord, ...]
    transforms: tuple[dict[str, str], ...]
    rows: tuple[ExpectedRow, ...] = ()
    failed: tuple[int, ...] = ()
    ddl: str | None = None


@dataclass(frozen=True)
class ParityConnector:
    """The converters, transforms, predicates and topics of one connector."""

    topics: tuple[ParityTopic, ...]
    converters: Mapping[str, str]
    changes_topics: bool
    common: tuple[dict[str, str], ...] = ()
    predicates: Mapping[str, str] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the converters, transforms and predicates."""
        return properties_of(self.converters, self.topics, self.common, self.predicates)

    @property
    def ddl_by_topic(self) -> dict[str, str]:
        """The columns of records without schemas, by the topic of their rows."""
        return {row.topic: topic.ddl for topic in self.topics for row in topic.rows if topic.ddl is not None}


# ---- transforms ------------------------------------------------------------------------------------------------------

_NAMES = tuple(each["field"] for each in FIELDS)
_DATE_FORMAT = "yyyy-MM-dd HH:mm:ss"
_FUNCTIONS = str(Path(__file__).with_name("parity_functions.py"))
_REPLACE_NULLS = (
    "Cast",
    "ExtractField",
    "InsertField",
    "MaskField",
    "ReplaceField",
    "TimestampConverter",
    "ValueToKey",
)
_TIME_TYPES = ("Timestamp", "Date", "Time", "unix", "string")


def _transform(random: Random, name: str) -> dict[str, str]:
    """Draw the properties of a transform. The property `type` is the Java class name, or the name of headrace."""
    pick = random.choice
    fields = ",".join(random.sample(_NAMES, random.randint(1, 3)))
    drawn: dict[str, dict[str, str]] = {
        "Cast$Key": {"spec": pick(("k:string", "k:int8", "s:boolean"))},
        "Cast$Value": {"spec": pick(_CASTS)},
        "DropHeaders": {"headers": pick(("a", "a,b"))},
        "ExtractField$Key": {"field": pick(("k", "s"))},
        "ExtractField$Value": pick(({"field": pick(_NAMES)}, {"field": "in.y", "field.syntax.version": "V2"})),
        "Flatten$Key": {},
        "Flatten$Value": {"delimiter": pick((".", "_"))},
        "HeaderFrom$Key": {"fields": "k", "headers": "moved", "operation": pick(("move", "copy"))},
        "HeaderFrom$Value": {"fields": "id,name", "headers": "moved,n", "operation": pick(("move", "copy"))},
        "HoistField$Key": {"field": "hoisted"},
        "HoistField$Value": {"field": "hoisted"},
        "InsertField$Key": {"topic.field": "topic", "offset.field": pick(("at_offset", "at_offset!"))},
        "InsertField$Value": pick(
            (
                {
                    "topic.field": "topic",
                    "partition.field": "part",
                    "offset.field": "at_offset",
                    "timestamp.field": "ts",
                },
                {"static.field": pick(("origin", "origin!")), "static.value": "test"},
            )
        ),
        "InsertHeader": {"header": "inserted", "value.literal": pick(("1", "text", "true"))},
        "MaskField$Key": {"fields": pick(("k", "s", "k,s"))},
        "MaskField$Value": pick(({"fields": fields}, {"fields": "id,code", "replacement": "7"})),
        "RegexRouter": {"regex": "(.*)", "replacement": "$1-" + pick(("a", "b"))},
        "ReplaceField$Key": {"renames": "k:number"},
        "ReplaceField$Value": pick(({"exclude": fields}, {"include": fields}, {"renames": "id:number,code:flag2"})),
        "SetSchemaMetadata$Key": {"schema.name": "key"},
        "SetSchemaMetadata$Value": {"schema.name": "renamed", "schema.version": "3"},
        "TimestampConverter$Key": {"target.type": pick(_TIME_TYPES), "field": "t", "format": _DATE_FORMAT},
        "TimestampConverter$Value": {
            **pick(({"field": "created"}, {"field": "at"}, {"field": "day"}, {"field": "millis"})),
            "target.type": pick(_TIME_TYPES),
            "format": _DATE_FORMAT,
            "unix.precision": pick(("milliseconds", "seconds", "microseconds")),
        },
        "TimestampRouter": {"topic.format": "${topic}-${timestamp}", "timestamp.format": pick(("yyyy", "yyyyMM"))},
        "ValueToKey": pick(
            ({"fields": "id"}, {"fields": "code,name"}, {"fields": "in.x", "field.syntax.version": "V2"})
        ),
        f"{_CONFLUENT}Drop$Key": {"schema.behavior": pick(("nullify", "force_optional"))},
        f"{_CONFLUENT}Filter$Key": {"filter.condition": "$[?(@.k > 1)]", "filter.type": pick(("include", "exclude"))},
        f"{_CONFLUENT}Filter$Value": {
            "filter.condition": pick(("$[?(@.id > 5)]", "$[?(@.name == 'Ann')]")),
            "filter.type": pick(("include", "exclude")),
            "missing.or.null.behavior": pick(("include", "exclude", "fail")),
        },
        f"{_CONFLUENT}ExtractTopic$Key": {"field": "s", "skip.missing.or.null": "true"},
        f"{_CONFLUENT}ExtractTopic$Value": {"field": "route", "skip.missing.or.null": "true"},
        f"{_CONFLUENT}ExtractTopic$Header": {"field": "route", "skip.missing.or.null": "true"},
        f"{_CONFLUENT}MessageTimestampRouter": {
            "message.timestamp.keys": "at,created",
            "message.timestamp.format": _DATE_FORMAT,
            "topic.timestamp.format": "yyyy",
        },
        f"{_CONFLUENT}TombstoneHandler": {"behavior": pick(("drop_silent", "drop_warn", "fail", "ignore"))},
        "io.debezium.transforms.ExtractNewRecordState": {
            "add.fields": pick(("op", "op,ts_ms")),
            "delete.tombstone.handling.mode": pick(("drop", "rewrite", "tombstone", "delete-to-tombstone")),
            **pick(({}, {"add.headers": "op"}, {"replace.null.with.default": "false"})),
        },
        "Python": pick(
            (
                {"expression": "{**value, 'n': value['id'] + 1}"},
                {"expression": "{**value, 'name': topic}"},
                {"expression": "None if value['id'] % 3 == 0 else value"},
                {"file": _FUNCTIONS, "function": "with_lengths"},
            )
        ),
    }
    properties = drawn[name]
    if name.partition("$")[0] in _REPLACE_NULLS:
        properties = {**properties, **pick(({}, {"replace.null.with.default": "false"}))}
    is_short = name.partition("$")[0] == "Python" or "." in name
    return {"type": name if is_short else f"{_CONNECT}{name}", **properties}


_CASTS = (
    *("id:string", "code:int32", "code:int8,amount:int16", "amount:float32", "amount:string", "flag:int64"),
    *("flag:string", "name:boolean", "ratio:float64", "at:string", "at:int64", "day:string", "day:int32"),
    *("millis:float64", "price:string", "code:float64", "id:boolean", "id:int8"),
)
_BOTH_SIDES = tuple(
    f"{name}${side}"
    for name in (
        *("Cast", "ExtractField", "Flatten", "HeaderFrom", "HoistField", "InsertField", "MaskField", "ReplaceField"),
        *("SetSchemaMetadata", "TimestampConverter", f"{_CONFLUENT}Filter"),
    )
    for side in ("Key", "Value")
)
PLAIN = (
    *(*_BOTH_SIDES, "DropHeaders", "InsertHeader", "ValueToKey", "Python"),
    *(f"{_CONFLUENT}TombstoneHandler", f"{_CONFLUENT}Drop$Key"),
)
"""The transforms that do not change the topic."""
EVENTS = "io.debezium.transforms.ExtractNewRecordState"
ROUTERS = (
    *("RegexRouter", "TimestampRouter", f"{_CONFLUENT}MessageTimestampRouter"),
    *(f"{_CONFLUENT}ExtractTopic${side}" for side in ("Key", "Value", "Header")),
)
COMMON: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
    (
        {"type": f"{_CONFLUENT}Drop$Value", "predicate": "header"},
        {"header.type": "HasHeaderKey", "header.name": "skip"},
    ),
    ({"type": f"{_CONNECT}Filter", "predicate": "header"}, {"header.type": "HasHeaderKey", "header.name": "skip"}),
    ({"type": f"{_CONNECT}Filter", "predicate": "null"}, {"null.type": "RecordIsTombstone"}),
    (
        {"type": f"{_CONNECT}MaskField$Value", "fields": "id", "predicate": "header", "negate": "true"},
        {"header.type": "HasHeaderKey", "header.name": "a"},
    ),
    (
        {
            "type": f"{_CONNECT}InsertHeader",
            "header": "live",
            "value.literal": "1",
            "predicate": "null",
            "negate": "true",
        },
        {"null.type": "RecordIsTombstone"},
    ),
)
"""Transforms for all topics of a connector, and the properties of their predicates."""
HEADER_CONVERTERS = (
    "org.apache.kafka.connect.storage.SimpleHeaderConverter",
    "org.apache.kafka.connect.storage.StringConverter",
)


def parity_connectors(seed: int, count: int, topics: int) -> Iterator[ParityConnector]:
    """Generate `count` connectors with at most `topics` topics each. Every third one changes the topics of records."""
    random = Random(seed)
    names = {has_schemas: _in_rounds(random, (*_plain(has_schemas), EVENTS)) for has_schemas in (True, False)}
    for number in range(count):
        has_schemas = number % 4 != 3
        routes = number % 3 == 2
        common, predicates = COMMON[number % len(COMMON)]
        converters = json_converters(has_schemas, HEADER_CONVERTERS[number % len(HEADER_CONVERTERS)])
        routers = iter(_in_rounds(random, ROUTERS))
        drawn = []
        for index in range(topics):
            first = next(names[has_schemas])
            router = next(routers) if routes else None
            name = f"s{seed}p{number}t{index}"
            topic = _draw_topic(random, name, has_schemas, converters, first, router, common, predicates)
            if topic is not None:
                drawn.append(topic)
        yield ParityConnector(tuple(drawn), converters, routes, (common,), predicates)


def _plain(has_schemas: bool) -> Sequence[str]:
    """Return the transforms that do not change the topic, and that accept such records."""
    return [name for name in PLAIN if has_schemas or not name.startswith("SetSchemaMetadata")]


def _in_rounds(random: Random, items: Sequence[str]) -> Iterator[str]:
    """Yield all items in random order, again and again."""
    while True:
        yield from random.sample(items, len(items))


def _draw_topic(
    random: Random,
    name: str,
    has_schema: bool,
    converters: Mapping[str, str],
    first: str,
    router: str | None,
    common: dict[str, str],
    predicates: Mapping[str, str],
) -> ParityTopic | None:
    """Draw transforms, the first of the class `first`, until a table can contain most of the records."""
    for _ in range(_DRAWS_MAX):
        more = random.choices(_plain(has_schema), k=random.randrange(TRANSFORMS_MAX))
        classes = [first, *more, *([router] if router else [])]
        transforms = tuple(_transform(random, each) for each in classes)
        records = draw_records(random, name, has_schema, first == EVENTS)
        topic = ParityTopic(name, has_schema, records, transforms)
        found = with_results(topic, properties_of(converters, (topic,), (common,), predicates))
        if found is not None:
            return found
    return None


def with_results(topic: ParityTopic, properties: dict[str, str]) -> ParityTopic | None:
    """Return the topic with its results, or None if its tables cannot contain most of the records."""
    batches, failed = run_transforms(properties, topic)
    if not _fits_tables(batches, topic.has_schema) or sum(map(len, batches)) < len(topic.records) // 3:
        return None
    try:
        rows = tuple(row for batch in batches for row in rows_of(batch))
    except RecordErrors:  # JSON cannot contain a Timestamp without a schema
        return None
    ddl = None if topic.has_schema else _ddl([row.value for row in rows])
    return replace(topic, rows=rows, failed=failed, ddl=ddl)


def json_converters(has_schemas: bool, header_converter: str) -> dict[str, str]:
    """Return the properties of JSON converters for keys and values."""
    enabled = str(has_schemas).lower()
    return {
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "key.converter.schemas.enable": enabled,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": enabled,
        "header.converter": header_converter,
    }


def properties_of(
    converters: Mapping[str, str],
    topics: Sequence[ParityTopic],
    common: Sequence[dict[str, str]] = (),
    predicates: Mapping[str, str] = {},
) -> dict[str, str]:
    """Return the properties of the converters, transforms and predicates of a connector."""
    steps = [(f"common{index}", transform) for index, transform in enumerate(common)]
    declared = {name.partition(".")[0]: None for name in predicates}
    properties = {f"predicates.{name}": text for name, text in predicates.items()}
    for topic in topics:
        if not topic.transforms:
            continue
        declared[f"is_{topic.name}"] = None
        properties |= {
            f"predicates.is_{topic.name}.type": "TopicNameMatches",
            f"predicates.is_{topic.name}.pattern": f"{topic.name}(-.*)?",
        }
        steps += [
            (f"{topic.name}_{index}", {**transform, "predicate": f"is_{topic.name}"})
            for index, transform in enumerate(topic.transforms)
        ]
    for alias, transform in steps:
        properties |= {f"transforms.{alias}.{name}": text for name, text in transform.items()}
    if steps:
        properties["transforms"] = ",".join(alias for alias, _ in steps)
    if declared:
        properties["predicates"] = ",".join(declared)
    return {**converters, "errors.tolerance": "all", **properties}


# ---- the S3 sink's path ----------------------------------------------------------------------------------------------


def run_transforms(properties: dict[str, str], topic: ParityTopic) -> tuple[list[SinkBatch], tuple[int, ...]]:
    """Convert and transform the records of a topic as a sink task does.

    Return the batches, and the offsets of the failed records.
    """
    failed: list[int] = []

    def report(failure: Failure, part: Any) -> None:
        failed.append(original_position(part)[2])

    operator = RetryWithToleranceOperator(
        error_policy(tolerate=True),
        report=report,
        describe=str,
        now_ms=lambda: 0,
        wait_ms=lambda _: True,
        rng=Random(0),
    )
    plugins = Plugins(TaskSpec(connector="parity", number=0, config={}, connector_config=properties, worker={}))
    chain = TransformChain(plugins.make_steps(), operator)
    columns = RecordColumns(
        values=[record.value for record in topic.records],
        keys=[record.key for record in topic.records],
        headers=[list(record.headers) for record in topic.records],
        timestamps=[record.timestamp_ms for record in topic.records],
        offsets=range(len(topic.records)),
    )
    converted = FromBytes(plugins.make_converters(), operator).convert(RawPart(topic.name, 0, columns))
    batches = [result for batch in converted for result in chain.apply(batch)]
    chain.close()
    return batches, tuple(sorted(failed))


_S3 = S3SinkConfig.parse(
    {
        "s3.bucket.name": "parity",
        "flush.size": "1",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "json.decimal.format": "NUMERIC",
        "store.kafka.keys": "true",
        "store.kafka.headers": "true",
        "keys.format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "headers.format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "behavior.on.null.values": "write",
    }
)
_SIDES = sides_of(_S3)


def rows_of(batch: SinkBatch) -> list[ExpectedRow]:
    """Encode a batch with the S3 sink's JSON format."""
    values, keys, headers = (
        [json.loads(bytes(text), parse_float=Decimal) for text in encode_side(side, batch)[1]] for side in _SIDES
    )
    return [
        ExpectedRow(batch.topic, offset, *row)
        for offset, *row in zip(batch.original_offsets, values, keys, headers, strict=True)
    ]


def _fits_tables(batches: Sequence[SinkBatch], has_schema: bool) -> bool:
    """Whether the keys and values of each topic can be the rows of one table."""
    schemas: dict[str, set[Schema | None]] = {}
    for batch in batches:
        if any(value is not None for value in batch.values):
            schemas.setdefault(batch.topic, set()).add(batch.value_schema)
    if not schemas or any(len(found) > 1 for found in schemas.values()):
        return False
    if not all(topic in schemas and _keys_fit_table(found) for topic, found in _by_topic(batches).items()):
        return False  # without a value, the columns of the table are unknown
    (*found,) = {schema for (schema,) in schemas.values()}
    if not has_schema:
        return found == [None] and _ddl([value for batch in batches for value in batch.values]) is not None
    return all(schema is not None and _can_be_stored(schema) for schema in found)


def _by_topic(batches: Sequence[SinkBatch]) -> dict[str, list[SinkBatch]]:
    found: dict[str, list[SinkBatch]] = {}
    for batch in batches:
        found.setdefault(batch.topic, []).append(batch)
    return found


def _keys_fit_table(batches: Sequence[SinkBatch]) -> bool:
    """Whether all keys of a topic have the same schema."""
    found = {batch.key_schema for batch in batches if any(key is not None for key in batch.keys or ())}
    return len(found) <= 1 and all(schema is None or _can_be_stored(schema) for schema in found)


def _can_be_stored(schema: Schema) -> bool:
    """Whether a table can store values with this schema. Field names must be valid in Delta and Iceberg."""
    names = [each.name.lower() for each in schema.fields]
    inner = (*(each.schema for each in schema.fields), schema.key_schema, schema.value_schema)
    return (
        len(set(names)) == len(names) > (-1 if schema.type is not Type.STRUCT else 0)
        and all(name and _INVALID_IN_NAMES.isdisjoint(name) for name in names)
        and all(_can_be_stored(each) for each in inner if each is not None)
    )


def _ddl(values: Sequence[Any]) -> str | None:
    """Return the columns of maps as Spark DDL, or None if a column would contain values of several types."""
    maps = [value for value in values if value is not None]
    if not maps or not all(isinstance(value, dict) for value in maps):
        return None
    members = _ddl_members(maps)
    return None if members is None else ", ".join(f"`{name}` {type_}" for name, type_ in members)


def _ddl_members(maps: Sequence[dict[str, Any]]) -> list[tuple[str, str]] | None:
    names = dict.fromkeys(name for value in maps for name in value)
    if len({name.lower() for name in names}) < len(names) or any(
        not _INVALID_IN_NAMES.isdisjoint(each) for each in names
    ):
        return None
    members = []
    for name in names:
        type_ = _ddl_type([value[name] for value in maps if value.get(name) is not None])
        if type_ is None:
            return None
        members.append((name, type_))
    return members


def _ddl_type(values: Sequence[Any]) -> str | None:
    classes = set(map(type, values))
    if classes == {dict}:
        members = _ddl_members(values)
        return None if not members else f"STRUCT<{', '.join(f'`{name}`: {type_}' for name, type_ in members)}>"
    types = {str: "STRING", int: "BIGINT", bool: "BOOLEAN", float: "DOUBLE", Decimal: "DOUBLE"}
    return "STRING" if not classes else types.get(next(iter(classes))) if len(classes) == 1 else None
