"""Changes the topics of a batch's records, for transforms that route records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from headrace.data.batch import Batch


def with_topics(batch: Batch, topics: Sequence[str]) -> list[Batch]:
    """Set the topic of each record. Return one batch for each run of records with the same topic."""
    if len(set(topics)) == 1:
        return [batch.replace(topic=topics[0])]
    runs = groupby(range(len(topics)), key=topics.__getitem__)
    return [batch.take(list(indexes)).replace(topic=topic) for topic, indexes in runs]
