"""TopicNameMatches: true for records whose topic name matches a regular expression."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, key
from headrace.api.predicate import Predicate
from headrace.data.batch import Batch
from headrace.data.java_regex import JavaPattern, check_pattern


class TopicNameMatchesConfig(Config):
    """Configuration of TopicNameMatches."""

    pattern: str = key(
        "pattern",
        non_empty=True,
        validator=check_pattern,
        doc="Java regular expression that the whole topic name must match.",
    )


class TopicNameMatches(Predicate[TopicNameMatchesConfig]):
    """True for records whose whole topic name matches the regular expression."""

    java_names = ("org.apache.kafka.connect.transforms.predicates.TopicNameMatches",)
    stateless = True

    def configure(self, config: TopicNameMatchesConfig) -> None:
        """Compile the pattern."""
        self._pattern = JavaPattern(config.pattern)

    def test(self, record: Any) -> bool:
        """Whether the record's whole topic name matches the pattern."""
        return record.topic is not None and self._pattern.matches(record.topic)

    def test_batch(self, batch: Batch) -> list[bool]:
        """Return the result of `test` for every record."""
        return [self._pattern.matches(batch.topic)] * len(batch)
