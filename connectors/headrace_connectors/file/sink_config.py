"""Configuration of the FileStream sink, with Apache Kafka's keys and defaults."""

from __future__ import annotations

from headrace.api.config import Config, Importance, key


class FileStreamSinkConfig(Config):
    """Configuration of FileStreamSinkConnector and its tasks."""

    file: str | None = key(
        "file", default=None, doc="Destination filename. If not specified, the standard output will be used.",
        importance=Importance.HIGH,
    )  # fmt: skip
