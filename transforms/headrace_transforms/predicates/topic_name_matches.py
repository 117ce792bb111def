"""TopicNameMatches: records of topics whose name matches a regular expression."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, key
from headrace.api.predicate import Predicate
from headrace.data.batch import Batch
from headrace.data.java_regex import JavaPattern, check_pattern


class TopicNameMatchesConfig(Config):
    """The key of TopicNameMatches."""

    pattern: str = key(
        "pattern",
        non_empty=True,
        validator=check_pattern,
        doc="Regular expression, in Java's syntax, that the whole name must match.",
    )


class TopicNameMatches(Predicate):
    """True for records whose topic matches as a whole."""

    config_model = TopicNameMatchesConfig
    java_names = ("org.apache.kafka.connect.transforms.predicates.TopicNameMatches",)

    def configure(self, config: TopicNameMatchesConfig) -> None:
        """Take the pattern."""
        self._pattern = JavaPattern(config.pattern)

    def test(self, record: Any) -> bool:
        """Whether the record's topic matches."""
        return record.topic is not None and self._pattern.matches(record.topic)

    def test_batch(self, batch: Batch) -> list[bool]:
        """`test` for every record."""
        return [self._pattern.matches(batch.topic)] * len(batch)
