"""Creates a topic for one measurement. Deletes the topic and its files before the next measurement.

The next measurement then writes to pages that the kernel has used before. Pages that a virtual machine has never used
are much slower, because the host must supply them first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic

DELETE_DELAY_MS = "1000"
DELETE_WAIT_S = 3.0


@contextmanager
def fresh_topic(address: str, partitions: int = 1, replication_factor: int = 1) -> Iterator[str]:
    """Create a topic, and delete it at the end.

    The brokers should set `log.segment.delete.delay.ms` to DELETE_DELAY_MS.
    """
    admin = AdminClient({"bootstrap.servers": address})
    name = f"bench-{time.time_ns()}"
    for future in admin.create_topics([NewTopic(name, partitions, replication_factor)]).values():
        future.result(30)
    while name not in (topics := admin.list_topics(timeout=10).topics) or not _is_led(topics[name]):
        time.sleep(0.05)  # poll, because no event reports changed metadata
    yield name
    delete_topic(address, name)


def delete_topic(address: str, name: str) -> None:
    """Delete a topic, and wait until its files are deleted and all other files are on disk.

    The brokers should set `log.segment.delete.delay.ms` to DELETE_DELAY_MS.
    """
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_topics([name]).values():
        future.result(30)
    time.sleep(DELETE_WAIT_S)  # the broker deletes the files asynchronously; no event reports it
    os.sync()


def _is_led(topic: object) -> bool:
    return all(partition.leader >= 0 for partition in topic.partitions.values())  # type: ignore[attr-defined]
