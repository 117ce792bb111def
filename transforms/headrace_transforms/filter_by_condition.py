"""Confluent's Filter: include or exclude records whose key or value matches a JSONPath condition."""

from __future__ import annotations

from typing import Any, ClassVar

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.struct import from_rows
from headrace_transforms.json_path import JsonPath
from headrace_transforms.key_or_value import ListTransformation
from headrace_transforms.record_errors import place_of, record_error, type_name


def _check_path(query: str) -> None:
    JsonPath(query)


class FilterByConditionConfig(Config):
    """Configuration of Confluent's Filter."""

    filter_condition: str = key(
        "filter.condition",
        validator=_check_path,
        doc="JSONPath that a record matches if the path selects something, for example "
        "$.book[?(@.author == 'Tolstoy' || @.author == 'Dostoevsky')]. A filter on an object tests the object itself.",
        importance=Importance.HIGH,
    )
    filter_type: str = key(
        "filter.type",
        one_of=("include", "exclude"),
        case_insensitive=True,
        doc="include: keep the records that match. exclude: drop them.",
        importance=Importance.HIGH,
    )
    missing_or_null_behavior: str = key(
        "missing.or.null.behavior",
        default="fail",
        one_of=("fail", "include", "exclude"),
        case_insensitive=True,
        doc="What happens to a record that does not match and in which a field of the condition is missing or null. "
        "fail: it is an error. include: it is kept. exclude: it is dropped.",
        importance=Importance.MEDIUM,
    )


class FilterByCondition(ListTransformation[FilterByConditionConfig]):
    """Keeps or drops whole records. It never changes a record."""

    abstract = True
    changes_topics = False
    side: ClassVar[str]
    """``key`` or ``value``."""

    def configure(self, config: FilterByConditionConfig) -> None:
        """Compile the condition."""
        self._condition = config.filter_condition
        self._path = JsonPath(config.filter_condition)
        self._keep_matching = config.filter_type.lower() == "include"
        self._missing = config.missing_or_null_behavior.lower()

    def change_batch(self, batch: Any) -> Batch | None:
        """Return the records to keep, or None if all records are dropped.

        With missing.or.null.behavior=fail, raises DataError if a record lacks a field that the condition uses.
        """
        kept = [index for index, value in enumerate(self._values(batch)) if self._keeps(value, batch.topic)]
        if len(kept) == len(batch):
            return batch  # type: ignore[no-any-return]
        return batch.take(kept) if kept else None

    def _values(self, batch: Batch) -> list[Any]:
        if self.side == "value":
            return from_rows(batch.value_schema, batch.values)
        return from_rows(batch.key_schema, batch.keys) if batch.keys is not None else [None] * len(batch)

    def _keeps(self, value: Any, topic: str) -> bool:
        if self._path.select(value):
            return self._keep_matching
        if value is not None and not self._path.missing_or_null(value):
            return not self._keep_matching
        if self._missing == "fail":
            message = (
                f"A field of filter.condition {self._condition} is missing or null in the {self.side} of a record of "
                f"topic {topic}; set missing.or.null.behavior to include or exclude such records"
            )
            expected = "a STRUCT or MAP with all fields of the condition"
            raise record_error(message, place_of(self.side), expected, type_name(value))
        return self._missing == "include"


class FilterKey(FilterByCondition):
    """The filter applied to the key."""

    side = "key"
    java_names = ("io.confluent.connect.transforms.Filter$Key",)


class FilterValue(FilterByCondition):
    """The filter applied to the value."""

    side = "value"
    java_names = ("io.confluent.connect.transforms.Filter$Value",)
