"""Chooses the topics of a run: one topic that keeps all records, and random topics that may remove records.

A compacted topic keeps the latest record of each key. A topic with retention deletes its oldest segments. A topic with
unclean leader election may lose any record. The only guarantee for such a topic is that its replicas agree at the end
of the run.
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
"""The partitions of the topic that keeps all records."""


def choose_topics(rng: Random, only: tuple[str, ...] = ()) -> dict[str, NewTopic]:
    """Return the topics of a run by name.

    One topic keeps all records. The other topics are at most two random topics, or those in `only`.
    """
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
