"""The topics of a run: one that keeps everything, and those that a seed draws beside it, which may lose records.

Some lose them by rule: a compacted one all but the newest of a key, one with retention the oldest.  Of one that lets
anybody lead nothing is promised but that its replicas agree in the end.
"""

from __future__ import annotations

from random import Random

from headrace_broker.client.admin import NewTopic
from headrace_broker.protocol.topic_names import TopicPartition

TOPIC = "t"
COMPACTED = "c"
RETAINED = "r"
UNCLEAN = "u"
PARTITIONS: list[TopicPartition] = [(TOPIC, 0), (TOPIC, 1)]
"""Those that keep everything."""


def drawn(rng: Random, only: tuple[str, ...] = ()) -> dict[str, NewTopic]:
    """{name: topic}: the one that keeps everything, and two others at most, or just these."""
    short = {"segment.ms": "400", "file.delete.delay.ms": "500"}
    compaction = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    horizon = {"delete.retention.ms": rng.choice(("100", "1000", "100000"))}
    retention = rng.choice(({"retention.ms": "1500"}, {"retention.bytes": "1500"}, {"retention.ms": "-1"}))
    others = (
        NewTopic(COMPACTED, 1, 3, {**short, **compaction, **horizon}),
        NewTopic(RETAINED, 1, 3, {**short, **retention}),
        NewTopic(UNCLEAN, 1, 2, {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}),
    )
    chosen = rng.sample(others, rng.choice((0, 0, 1, 1, 2)))
    if only:
        chosen = [topic for topic in others if topic.name in only]
    return {topic.name: topic for topic in (NewTopic(TOPIC, len(PARTITIONS), 3), *chosen)}
