"""RegexRouter: change the topic of records with a regular expression and a replacement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.api.errors import ConfigError
from headrace.data.batch import Batch
from headrace.data.java_regex import JavaPattern, check_pattern
from headrace_transforms.key_or_value import ListTransformation


class RegexRouterConfig(Config):
    """Configuration of RegexRouter."""

    regex: str = key(
        "regex",
        validator=check_pattern,
        doc="Java regular expression that the whole topic name must match.",
        importance=Importance.HIGH,
    )
    replacement: str = key(
        "replacement",
        doc="The new topic name. $1 and ${name} are replaced with the groups of the regular expression.",
        importance=Importance.HIGH,
    )

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Check that the regular expression has all groups that the replacement references."""
        if "regex" not in values or "replacement" not in values:
            return
        try:
            JavaPattern(values["regex"]).check_replacement(values["replacement"])
        except ValueError as error:
            yield ConfigError("replacement", values["replacement"], str(error))


class RegexRouter(ListTransformation[RegexRouterConfig]):
    """Replaces a topic name if the regular expression matches the whole name."""

    java_names = ("org.apache.kafka.connect.transforms.RegexRouter",)

    def configure(self, config: RegexRouterConfig) -> None:
        """Compile the pattern and store the replacement."""
        self._pattern = JavaPattern(config.regex)
        self._replacement = config.replacement
        self._topics: dict[str, str] = {}

    def change_batch(self, batch: Any) -> Batch:
        """Change the topic of the batch."""
        topic = self._topics.get(batch.topic)
        if topic is None:
            if len(self._topics) >= 10_000:
                self._topics.clear()
            topic = self._topics[batch.topic] = self._routed(batch.topic)
        changed: Batch = batch if topic == batch.topic else batch.replace(topic=topic)
        return changed

    def _routed(self, topic: str) -> str:
        return self._pattern.replace_first(topic, self._replacement) if self._pattern.matches(topic) else topic
