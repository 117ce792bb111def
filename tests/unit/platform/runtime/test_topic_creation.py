"""Tests of the keys `topic.creation.*`.

The first matching topic creation group applies. If it does not set the partitions or the replication factor, those of
the default group apply. Topic configs are not inherited.
"""

from __future__ import annotations

import pytest

from headrace.runtime.topic_creation import NewTopic, TopicCreation

CONFIG = {
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "-1",
    "topic.creation.default.cleanup.policy": "delete",
    "topic.creation.groups": "compact, wide",
    "topic.creation.compact.include": r"db\..*,state",
    "topic.creation.compact.exclude": r"db\.log",
    "topic.creation.compact.cleanup.policy": "compact",
    "topic.creation.wide.include": ".*log",
    "topic.creation.wide.partitions": "8",
}


def test_first_matching_topic_creation_group_applies() -> None:
    creation = TopicCreation.from_config(CONFIG, enabled=True)
    assert creation is not None
    assert creation.settings_for("db.users") == NewTopic("db.users", 1, -1, {"cleanup.policy": "compact"})
    assert creation.settings_for("db.log") == NewTopic("db.log", 8, -1, {})
    assert creation.settings_for("xstate") == NewTopic("xstate", 1, -1, {"cleanup.policy": "delete"})


def test_topic_creation_is_disabled_if_no_topic_creation_keys_are_set_or_if_the_worker_disables_it() -> None:
    assert TopicCreation.from_config({"topic": "x"}, enabled=True) is None
    assert TopicCreation.from_config(CONFIG, enabled=False) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("topic.creation.default.partitions", None),
        ("topic.creation.default.partitions", "0"),
        ("topic.creation.default.replication.factor", "many"),
        ("topic.creation.wide.include", None),
        ("topic.creation.wide.include", "("),
    ],
)
def test_error_for_a_missing_or_invalid_topic_creation_value_names_the_key(key: str, value: str | None) -> None:
    config = {name: text for name, text in CONFIG.items() if name != key} | ({} if value is None else {key: value})
    with pytest.raises(ValueError, match=key.replace(".", r"\.")):
        TopicCreation.from_config(config, enabled=True)
