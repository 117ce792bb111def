"""Confluent's MessageTimestampRouter: change the topic of records to a name with a timestamp from the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import DataError
from headrace.data.batch import Batch
from headrace.data.java_dates import SimpleDateFormat, pattern_warnings
from headrace.data.logical import Date, Time
from headrace.data.struct import Struct
from headrace_transforms.columnar import values_with_fields
from headrace_transforms.key_or_value import ListTransformation
from headrace_transforms.list_checks import require_non_empty_items
from headrace_transforms.record_errors import place_of, record_error, type_name
from headrace_transforms.topics import with_topics


def _check_format(pattern: str) -> None:
    SimpleDateFormat(pattern)


class MessageTimestampRouterConfig(Config):
    """Configuration of MessageTimestampRouter."""

    topic_format: str = key(
        "topic.format",
        default="${topic}-${timestamp}",
        doc="The new topic name. ${topic} is replaced with the old name and ${timestamp} with the formatted timestamp.",
        importance=Importance.HIGH,
    )
    message_timestamp_keys: list[str] = key(
        "message.timestamp.keys",
        validator=require_non_empty_items,
        distinct=True,
        doc="Names of fields of the value. The first one that is present and not null contains the timestamp.",
        importance=Importance.HIGH,
    )
    message_timestamp_format: str = key(
        "message.timestamp.format",
        default="yyyy-MM-dd",
        validator=_check_format,
        doc="SimpleDateFormat pattern of a timestamp that is a string. Numbers are milliseconds since the epoch.",
        importance=Importance.HIGH,
    )
    topic_timestamp_format: str = key(
        "topic.timestamp.format",
        default="yyyyMMdd",
        validator=_check_format,
        doc="SimpleDateFormat pattern for the timestamp in the topic's name, in UTC.",
        importance=Importance.HIGH,
    )

    def value_warnings(self, task_class: type[Any]) -> dict[str, str]:
        """Warn about patterns that shift the time or create other names than expected."""
        return pattern_warnings(
            {
                "message.timestamp.format": self.message_timestamp_format,
                "topic.timestamp.format": self.topic_timestamp_format,
            }
        )


class MessageTimestampRouter(ListTransformation[MessageTimestampRouterConfig]):
    """Changes the topic of records to `topic.format`, with a timestamp from the value.

    A missing timestamp is an error. Unlike Confluent's transform, this transform accepts structs, too.
    """

    java_names = ("io.confluent.connect.transforms.MessageTimestampRouter",)

    def configure(self, config: MessageTimestampRouterConfig) -> None:
        """Compile the formats."""
        self._topic_format = config.topic_format
        self._keys = config.message_timestamp_keys
        text_format = config.message_timestamp_format
        self._expected = f"STRING with the format {text_format}, Timestamp, or INT64 with milliseconds since 1970"
        self._parse = SimpleDateFormat(text_format).parse
        self._format = SimpleDateFormat(config.topic_timestamp_format).format

    def change_batch(self, batch: Any) -> list[Batch]:
        """Return the records with their new topics."""
        values = values_with_fields(batch, self._keys)
        return with_topics(batch, [self._topic(value, batch.topic) for value in values])

    def _topic(self, value: Any, topic: str) -> str:
        text = self._format(self._timestamp(value, topic))
        return self._topic_format.replace("${topic}", topic).replace("${timestamp}", text)

    def _timestamp(self, value: Any, topic: str) -> int:
        if not isinstance(value, Mapping):
            message = f"MessageTimestampRouter needs a Struct or Map for a record of topic {topic}"
            raise record_error(message, place_of("value"), "STRUCT or MAP", type_name(value))
        name = next((name for name in self._keys if value.get(name) is not None), None)
        if name is None:
            names = ", ".join(self._keys)
            message = f"No field of message.timestamp.keys ({names}) has a value in a record of topic {topic}"
            raise record_error(message, f"fields {names} of the value", self._expected, "null")
        found = value.get(name)
        try:
            if isinstance(found, str):
                return self._parse(found)
            if isinstance(found, int) and not isinstance(found, (bool, Date, Time)):
                return found
        except DataError as error:
            raise record_error(str(error), place_of("value", name), self._expected, type_name(found)) from None
        message = f"Field {name} must be a string, a Timestamp or milliseconds"
        schema = value.schema.fields[value.schema.index_of(name)].schema if isinstance(value, Struct) else None
        raise record_error(message, place_of("value", name), self._expected, type_name(found, schema))
