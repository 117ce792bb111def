"""TimestampRouter: change the topic of records to a name that contains the record's formatted timestamp."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.java_dates import SimpleDateFormat, pattern_warnings
from headrace_transforms.key_or_value import ListTransformation
from headrace_transforms.record_errors import record_error
from headrace_transforms.topics import with_topics

_PLACE = "the record's timestamp"
_EXPECTED = "INT64 with milliseconds since 1970"


def _check_format(pattern: str) -> None:
    SimpleDateFormat(pattern)


class TimestampRouterConfig(Config):
    """Configuration of TimestampRouter."""

    topic_format: str = key(
        "topic.format",
        default="${topic}-${timestamp}",
        doc="The new topic name. ${topic} is replaced with the old name and ${timestamp} with the formatted timestamp.",
        importance=Importance.HIGH,
    )
    timestamp_format: str = key(
        "timestamp.format",
        default="yyyyMMdd",
        validator=_check_format,
        doc="SimpleDateFormat pattern for the record's timestamp in UTC.",
        importance=Importance.HIGH,
    )

    def value_warnings(self, task_class: type[Any]) -> dict[str, str]:
        """Warn about a pattern that creates other names than expected."""
        return pattern_warnings({"timestamp.format": self.timestamp_format})


class TimestampRouter(ListTransformation[TimestampRouterConfig]):
    """Changes the topic of records to `topic.format`. A record without a timestamp is an error."""

    java_names = ("org.apache.kafka.connect.transforms.TimestampRouter",)

    def configure(self, config: TimestampRouterConfig) -> None:
        """Store the formats."""
        self._topic_format = config.topic_format
        self._format = SimpleDateFormat(config.timestamp_format).format

    def _routed(self, topic: str, timestamp: int | None) -> str:
        if timestamp is None:
            raise record_error(f"Timestamp missing on record of topic {topic}", _PLACE, _EXPECTED, "null")
        text = self._format(timestamp)
        return self._topic_format.replace("${topic}", topic).replace("${timestamp}", text)

    def change_batch(self, batch: Any) -> list[Batch]:
        """Return the records with their new topics, with one batch for each run of records with the same topic."""
        return with_topics(batch, [self._routed(batch.topic, timestamp) for timestamp in batch.timestamp_list()])
