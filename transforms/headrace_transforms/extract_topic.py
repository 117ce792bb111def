"""Confluent's ExtractTopic: change the topic of records to a name in the key, the value or a header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError
from headrace.api.plugin import C
from headrace.data.batch import Batch
from headrace.data.schema import Schema
from headrace.data.struct import from_rows
from headrace_transforms.columnar import values_with_fields
from headrace_transforms.json_path import JsonPath
from headrace_transforms.key_or_value import ListTransformation
from headrace_transforms.record_errors import place_of, record_error, type_name
from headrace_transforms.topics import with_topics

_SKIP_DOC = "Whether a record in which the topic's name is missing or null keeps its topic. If false, it is an error."


def _skip_key() -> Any:
    return key("skip.missing.or.null", default=False, doc=_SKIP_DOC, importance=Importance.LOW)


class ExtractTopicConfig(Config):
    """Configuration of ExtractTopic for keys and values."""

    field: str = key(
        "field",
        default="",
        doc="The field that contains the topic's name. Empty: the whole key or value is the name.",
        importance=Importance.MEDIUM,
    )
    field_format: str = key(
        "field.format",
        default="plain",
        one_of=("plain", "json_path"),
        case_insensitive=True,
        doc="plain: `field` is the name of a field. json_path: it is a JSONPath, for example $['f1']['f2'].",
        importance=Importance.MEDIUM,
    )
    skip_missing_or_null: bool = _skip_key()


class ExtractTopicHeaderConfig(Config):
    """Configuration of ExtractTopic for headers."""

    field: str = key("field", doc="The key of the header that contains the topic's name.", importance=Importance.MEDIUM)
    skip_missing_or_null: bool = _skip_key()

    @property
    def reads_header_values(self) -> bool:
        """Return True: the topic's name is the value of a header."""
        return True


class _TopicRouter(ListTransformation[C]):
    """Changes the topic of each record to a name that the record contains in its key, its value or a header."""

    abstract = True
    _skip: bool
    _source: str

    def names(self, batch: Batch) -> list[Any]:
        """Return, for each record, the value that becomes its topic name, or None if there is no such value."""
        raise NotImplementedError

    def change_batch(self, batch: Any) -> list[Batch]:
        """Return the records with their new topics. Raises DataError if a name is missing or is not a string."""
        return with_topics(batch, [self._topic(name, batch) for name in self.names(batch)])

    def name_schema(self, batch: Batch) -> Schema | None:
        """Return the schema of the value that becomes the topic name of the only record in the batch, if it has one."""
        raise NotImplementedError

    def _topic(self, name: Any, batch: Batch) -> str:
        if name is None or name == "":
            if self._skip:
                return batch.topic
            message = (
                f"The topic's name is missing or null in {self._source} of a record of topic {batch.topic}; set "
                "skip.missing.or.null=true to keep the topic of such records"
            )
            raise record_error(message, self._source, "STRING", "null" if name is None else "an empty STRING")
        if not isinstance(name, str):
            message = f"The topic's name in {self._source} must be a string"
            raise record_error(message, self._source, "STRING", type_name(name, self.name_schema(batch)))
        return name


class ExtractTopic(_TopicRouter[ExtractTopicConfig]):
    """Changes the topic of each record to the key, the value, or one of their fields."""

    abstract = True
    side: str

    def configure(self, config: ExtractTopicConfig) -> None:
        """Compile the path. Raises ConfigError if it is invalid."""
        self._skip = config.skip_missing_or_null
        self._field = config.field
        self._source = place_of(self.side, *([config.field] if config.field else []))
        self._path = None
        if config.field and config.field_format.lower() == "json_path":
            try:
                self._path = JsonPath(config.field)
            except ValueError as error:
                raise ConfigError("field", config.field, str(error)) from None

    def names(self, batch: Batch) -> list[Any]:
        """Return the field, or the whole key or value, of each record."""
        if self.side == "value" and self._field and self._path is None:
            items = values_with_fields(batch, [self._field])
        elif self.side == "value":
            items = from_rows(batch.value_schema, batch.values)
        else:
            items = from_rows(batch.key_schema, batch.keys) if batch.keys is not None else [None] * len(batch)
        return [self._name(item) for item in items]

    def name_schema(self, batch: Batch) -> Schema | None:
        """Return the schema of the field, or of the whole key or value."""
        schema = batch.value_schema if self.side == "value" else batch.key_schema
        if schema is None or not self._field:
            return schema
        field = schema.field(self._field) if self._path is None else None
        return field.schema if field is not None else None

    def _name(self, item: Any) -> Any:
        if not self._field or item is None:
            return item
        if self._path is not None:
            return next(iter(self._path.select(item)), None)
        if not isinstance(item, Mapping):
            message = f"ExtractTopic needs a Struct or Map to read {self._source}, found: {type_name(item)}"
            raise record_error(message, place_of(self.side), "STRUCT or MAP")
        return item.get(self._field)


class ExtractTopicKey(ExtractTopic):
    """ExtractTopic applied to the key."""

    side = "key"
    java_names = ("io.confluent.connect.transforms.ExtractTopic$Key",)


class ExtractTopicValue(ExtractTopic):
    """ExtractTopic applied to the value."""

    side = "value"
    java_names = ("io.confluent.connect.transforms.ExtractTopic$Value",)


class ExtractTopicHeader(_TopicRouter[ExtractTopicHeaderConfig]):
    """Changes the topic of each record to the value of the last header with the configured key."""

    java_names = ("io.confluent.connect.transforms.ExtractTopic$Header",)

    def configure(self, config: ExtractTopicHeaderConfig) -> None:
        """Store the header's key."""
        self._skip = config.skip_missing_or_null
        self._key = config.field
        self._source = f"header {config.field}"

    def names(self, batch: Batch) -> list[Any]:
        """Return, for each record, the value of the header, or None if there is no such header."""
        if batch.headers is None:
            return [None] * len(batch)
        found = [headers.last(self._key) for headers in batch.headers]
        return [header.value if header else None for header in found]

    def name_schema(self, batch: Batch) -> Schema | None:
        """Return the schema of the header."""
        header = batch.headers[0].last(self._key) if batch.headers is not None else None
        return header.schema if header is not None else None
