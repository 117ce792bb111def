"""Queries the cluster for the sink's existing topics: their ids, partitions, and log start and end offsets.

`Topics` wraps confluent-kafka's AdminClient. The task uses `Topics`, and the Kafka source uses it in
Spark's planner process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import regex
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
_REQUEST_TIMEOUT_S = 30.0
_UNKNOWN_TOPIC_OR_PARTITION = 3
_EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"


@dataclass(frozen=True, slots=True)
class Topic:
    """An existing topic. `id` is None if the cluster does not support topic ids."""

    name: str
    id: str | None
    partitions: tuple[int, ...]


class Topics:
    """The topics of one sink, given as a list or as a regular expression that matches whole topic names."""

    def __init__(
        self, client: Mapping[str, str | int | float | bool], names: Collection[str] | None, pattern: str | None
    ) -> None:
        self._admin = AdminClient(dict(client))
        self._names = None if pattern else sorted(names or ())
        self._pattern = regex.compile(pattern) if pattern else None

    def existing(self) -> dict[str, Topic]:
        """Return the sink's topics that exist. Raises KafkaException if the cluster is unavailable."""
        names = self._matching() if self._pattern is not None else self._names
        if not names:
            return {}
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=_REQUEST_TIMEOUT_S)
        topics = {}
        for name, future in futures.items():
            try:
                topics[name] = _topic(future.result())
            except KafkaException as error:
                if error.args[0].code() != _UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        return topics

    def _matching(self) -> list[str]:
        assert self._pattern is not None
        known = self._admin.list_topics(timeout=_REQUEST_TIMEOUT_S).topics
        return sorted(name for name in known if name not in INTERNAL_TOPICS and self._pattern.fullmatch(name))

    def log_bounds(
        self, partitions: Iterable[tuple[str, int]], *, read_committed: bool
    ) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
        """Return each partition's log start offset, and each partition's offset after the last readable record.

        With `read_committed`, the first record of an open transaction and all later records are not readable.
        """
        keys = [TopicPartition(topic, partition) for topic, partition in partitions]
        if not keys:
            return {}, {}
        earliest = self._list_offsets(keys, _EARLIEST, read_committed)
        latest = self._list_offsets(keys, _LATEST, read_committed)
        return _offsets(earliest), _offsets(latest)

    def _list_offsets(self, keys: list[TopicPartition], spec: Any, read_committed: bool) -> dict[Any, Any]:
        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        request = dict.fromkeys(keys, spec)
        result: dict[Any, Any] = self._admin.list_offsets(
            request, isolation_level=level, request_timeout=_REQUEST_TIMEOUT_S
        )
        return result


def _topic(description: Any) -> Topic:
    topic_id = str(description.topic_id) if description.topic_id is not None else _NO_TOPIC_ID
    partitions = tuple(sorted(partition.id for partition in description.partitions))
    return Topic(description.name, None if topic_id == _NO_TOPIC_ID else topic_id, partitions)


def _offsets(futures: dict[Any, Any]) -> dict[tuple[str, int], int]:
    return {(key.topic, key.partition): future.result().offset for key, future in futures.items()}
