"""RegexRouter: write records to another topic, made from their own by a regular expression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError
from headrace.data.batch import Batch
from headrace.data.java_regex import JavaPattern, check_pattern
from headrace_transforms.key_or_value import ListTransformation


class RegexRouterConfig(Config):
    """The keys of RegexRouter."""

    regex: str = key(
        "regex",
        validator=check_pattern,
        doc="Regular expression, in Java's syntax, that the whole topic must match.",
        importance=Importance.HIGH,
    )
    replacement: str = key(
        "replacement", doc="The new topic; $1 and ${name} stand for groups.", importance=Importance.HIGH
    )

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """The replacement's groups are in the pattern."""
        if "regex" not in values or "replacement" not in values:
            return
        try:
            JavaPattern(values["regex"]).check_replacement(values["replacement"])
        except ValueError as error:
            yield ConfigError("replacement", values["replacement"], str(error))


class RegexRouter(ListTransformation):
    """A topic that does not match as a whole stays."""

    config_model = RegexRouterConfig
    java_names = ("org.apache.kafka.connect.transforms.RegexRouter",)

    def configure(self, config: RegexRouterConfig) -> None:
        """Take pattern and replacement."""
        self._pattern = JavaPattern(config.regex)
        self._replacement = config.replacement
        self._topics: dict[str, str] = {}

    def change_batch(self, batch: Any) -> Batch:
        """Change the topic that the batch's records share."""
        topic = self._topics.get(batch.topic)
        if topic is None:
            if len(self._topics) >= 10_000:
                self._topics.clear()
            topic = self._topics[batch.topic] = self._routed(batch.topic)
        changed: Batch = batch if topic == batch.topic else batch.replace(topic=topic)
        return changed

    def _routed(self, topic: str) -> str:
        return self._pattern.replace_first(topic, self._replacement) if self._pattern.matches(topic) else topic
