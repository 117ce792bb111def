"""Configuration of the FileStream source, with Apache Kafka's keys and defaults."""

from __future__ import annotations

from headrace.api.config import Config, Importance, key


class FileStreamSourceConfig(Config):
    """Configuration of FileStreamSourceConnector and its task."""

    file: str | None = key(
        "file", default=None, doc="Source filename. If not specified, the standard input will be used.",
        importance=Importance.HIGH,
    )  # fmt: skip
    topic: str = key("topic", doc="The topic to publish data to.", importance=Importance.HIGH, non_empty=True)
    batch_size: int = key(
        "batch.size", default=2000, at_least=1, doc="The maximum number of records the source task can read from the "
        "file each time it is polled.", importance=Importance.LOW,
    )  # fmt: skip
