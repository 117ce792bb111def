"""Compares the internal topics of a worker with those of its group's leader.

The group protocol is Kafka Connect's and does not contain the names of the topics. A worker of headrace returns them in
a header of `GET /`. If the leader does not return this header, nothing is compared.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.runtime.worker_config import WorkerConfig

INTERNAL_TOPICS_HEADER = "headrace-internal-topics"
_KEYS = ("config.storage.topic", "offset.storage.topic", "status.storage.topic")


def internal_topics_header(config: WorkerConfig) -> str:
    """Return the names of a distributed worker's internal topics, or an empty string for a standalone worker."""
    return ",".join(config.values[key] for key in _KEYS if key in config.values)


def differing_topics(config: WorkerConfig, headers: Mapping[str, str]) -> list[str]:
    """Return one error for each internal topic that differs between the worker and the leader.

    `headers` are the headers of the leader's response. Their names are in lower case.
    """
    names = headers.get(INTERNAL_TOPICS_HEADER, "").split(",")
    if len(names) != len(_KEYS):
        return []
    return [
        f"{key}={config[key]} differs from the leader's {key}={name}: set the same topic in all workers of the group, "
        "and restart this worker"
        for key, name in zip(_KEYS, names, strict=True)
        if name != config[key]
    ]
