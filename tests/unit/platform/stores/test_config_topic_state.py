"""Tests of ConfigTopicState, which reads the records of the config topic, before and after compaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.stores.config_records import steps
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    ConnectorState,
    DeleteConnector,
    PutConnector,
    PutLogLevel,
    PutSessionKey,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.config_topic_state import ConfigTopicState

KeyValue = tuple[str, str | bytes | None]

CONNECTOR = ("connector-c", '{"properties":{"name":"c"}}')
TASK_0 = ("task-c-0", '{"properties":{"n":"0"}}')
TASK_1 = ("task-c-1", '{"properties":{"n":"1"}}')
NEW_TASK_0 = ("task-c-0", '{"properties":{"n":"new"}}')
STARTED = ("target-state-c", '{"state":"STARTED","state.v2":"STARTED"}')
PAUSED = ("target-state-c", '{"state":"PAUSED","state.v2":"PAUSED"}')
CONFIG = {"name": "c"}


def commit(count: int) -> KeyValue:
    return ("commit-c", f'{{"tasks":{count}}}')


def read(*records: KeyValue | None) -> tuple[ConfigTopicState, list[ConfigChange | None]]:
    """Read `records`, which start at offset 0. None stands for a record that compaction has removed."""
    state, changes = ConfigTopicState(), list[ConfigChange | None]()
    for offset, record in enumerate(records):
        if record is not None:
            key, value = record
            data = value.encode() if isinstance(value, str) else value
            changes.append(state.apply(offset, key.encode(), data))
    return state, changes


def connector_after(*records: KeyValue | None) -> ConnectorState:
    return read(*records)[0].snapshot().connectors["c"]


def tasks_after(*records: KeyValue | None) -> list[str]:
    return [config["n"] for config in connector_after(*records).task_configs]


# Offsets


def test_offset_of_a_snapshot_of_an_empty_config_topic_is_minus_1() -> None:
    assert ConfigTopicState().snapshot() == ConfigSnapshot(-1, {}, None)


def test_offset_of_a_config_snapshot_is_the_offset_after_its_last_record() -> None:
    state = ConfigTopicState()
    state.apply(41, b"connector-c", CONNECTOR[1].encode())
    assert state.snapshot().offset == 42
    state.apply(50, b"unknown", b"{}")
    assert state.snapshot().offset == 51


def test_record_with_a_value_that_is_not_json_does_not_advance_the_snapshot_offset() -> None:
    """Kafka Connect does not advance its offset for a record that is not JSON.

    Workers compare their offset with the offset in assignments.
    """
    state, _ = read(CONNECTOR, ("connector-c", "{"), ("connector-c", b"\xff"))
    assert state.snapshot().offset == 1
    state.apply(3, *(each.encode() for each in STARTED))
    assert state.snapshot().offset == 4


def test_earlier_config_snapshot_is_not_changed_by_later_records() -> None:
    state, _ = read(CONNECTOR)
    before = state.snapshot()
    state.apply(1, b"connector-d", CONNECTOR[1].encode())
    state.apply(2, b"connector-c", None)
    assert list(before.connectors) == ["c"]
    assert list(state.snapshot().connectors) == ["d"]


# Connectors and target states


def test_connector_without_a_target_state_record_has_target_state_started() -> None:
    state, changes = read(CONNECTOR)
    assert state.snapshot() == ConfigSnapshot(1, {"c": ConnectorState(CONFIG, TargetState.STARTED, 0)})
    assert changes == [PutConnector("c", CONFIG, TargetState.STARTED)]


def test_target_state_record_before_the_connector_record_is_the_initial_target_state() -> None:
    state, changes = read(PAUSED, CONNECTOR)
    assert state.snapshot().connectors == {"c": ConnectorState(CONFIG, TargetState.PAUSED, 1)}
    assert changes == [None, PutConnector("c", CONFIG, TargetState.PAUSED)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"state":"PAUSED","state.v2":"STOPPED"}', TargetState.STOPPED),
        ('{"state":"PAUSED"}', TargetState.PAUSED),
        ('{"state":"PAUSED","state.v2":null}', TargetState.PAUSED),
        ('{"state":"PAUSED","state.v2":1}', TargetState.PAUSED),
        ('{"state":"STARTED","state.v2":"STARTED"}', TargetState.STARTED),
        (None, TargetState.STARTED),
    ],
    ids=["STOPPED", "older worker", "null", "number", "STARTED", "tombstone"],
)
def test_target_state_is_read_from_field_state_v2_or_from_field_state_if_state_v2_is_not_valid(
    value: str | None, expected: TargetState
) -> None:
    state, changes = read(CONNECTOR, PAUSED, ("target-state-c", value))
    assert state.snapshot().connectors["c"].target is expected
    assert changes[-1] == PutTargetState("c", expected)


def test_new_configuration_of_a_connector_keeps_its_target_state_and_tasks() -> None:
    found = connector_after(CONNECTOR, TASK_0, commit(1), PAUSED, ("connector-c", '{"properties":{"name":"new"}}'))
    assert found == ConnectorState(
        {"name": "new"}, TargetState.PAUSED, 4, task_configs=({"n": "0"},), task_configs_offset=2, applied_config=CONFIG
    )


def test_tombstones_remove_a_connector_and_it_has_no_tasks_when_it_is_created_again() -> None:
    deletion = (("connector-c", None), ("target-state-c", None))
    state, changes = read(CONNECTOR, PAUSED, TASK_0, commit(1), *deletion)
    assert state.snapshot() == ConfigSnapshot(6, {})
    assert changes[-2:] == [DeleteConnector("c"), None]
    found = connector_after(CONNECTOR, PAUSED, TASK_0, commit(1), *deletion, CONNECTOR)
    assert found == ConnectorState(CONFIG, TargetState.STARTED, 6)


def test_target_state_of_a_deleted_connector_remains_until_the_tombstone_of_the_target_state() -> None:
    """A worker that starts later must read the same state from the topic after compaction."""
    live = connector_after(CONNECTOR, PAUSED, ("connector-c", None), CONNECTOR)
    compacted = connector_after(None, PAUSED, None, CONNECTOR)
    assert live == compacted == ConnectorState(CONFIG, TargetState.PAUSED, 3)


def test_null_properties_in_a_connector_record_are_omitted_and_numbers_become_strings() -> None:
    found = connector_after(("connector-c", '{"properties":{"a":null,"b":1,"ä":"数"}}'))
    assert found.config == {"b": "1", "ä": "数"}


# Task configurations


def test_task_configurations_take_effect_with_the_commit_record() -> None:
    assert tasks_after(CONNECTOR, TASK_0, TASK_1) == []
    state, changes = read(CONNECTOR, TASK_0, TASK_1, commit(2))
    found = state.snapshot().connectors["c"]
    assert list(found.task_configs) == [{"n": "0"}, {"n": "1"}]
    assert (found.task_configs_offset, found.applied_config) == (3, CONFIG)
    assert changes[1:] == [None, None, PutTaskConfigs("c", ({"n": "0"}, {"n": "1"}))]


def test_tasks_keep_their_configurations_until_the_next_commit_record() -> None:
    assert tasks_after(CONNECTOR, TASK_0, commit(1), NEW_TASK_0) == ["0"]
    assert tasks_after(CONNECTOR, TASK_0, commit(1), NEW_TASK_0, commit(1)) == ["new"]


def test_applied_config_is_the_connector_configuration_at_the_time_of_the_commit_record() -> None:
    new = ("connector-c", '{"properties":{"name":"new"}}')
    assert connector_after(CONNECTOR, TASK_0, commit(1), new).applied_config == CONFIG
    assert connector_after(CONNECTOR, TASK_0, commit(1), new, TASK_0, commit(1)).applied_config == {"name": "new"}


def test_commit_record_with_zero_tasks_removes_all_tasks_of_the_connector() -> None:
    found = connector_after(CONNECTOR, TASK_0, commit(1), commit(0))
    assert (found.task_configs, found.task_configs_offset, found.applied_config) == ((), 3, CONFIG)


def test_task_record_of_an_earlier_commit_with_more_tasks_is_ignored_after_compaction() -> None:
    """The first commit record had two tasks, 0 and 1. The second commit record has only task 0.

    After compaction, the record of task 1 is the only record of the first commit that remains.
    """
    assert tasks_after(CONNECTOR, None, TASK_1, None, NEW_TASK_0, commit(1)) == ["new"]


def test_task_record_that_a_commit_record_does_not_count_is_ignored_by_later_commit_records(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records = (CONNECTOR, None, TASK_1, None, NEW_TASK_0, commit(1), NEW_TASK_0, commit(2))
    assert tasks_after(*records) == []
    assert "1 of its 2 task configurations" in caplog.text


@pytest.mark.parametrize(
    "records",
    [
        (CONNECTOR, None, TASK_1, commit(2)),
        (CONNECTOR, TASK_0, None, commit(2)),
        (CONNECTOR, None, None, commit(1)),
        (CONNECTOR, TASK_0, commit(1), TASK_1, commit(2)),
    ],
    ids=["task 0 is missing", "task 1 is missing", "all are missing", "task 0 is of an earlier commit"],
)
def test_commit_record_with_missing_task_records_leaves_the_connector_without_tasks(
    records: Sequence[KeyValue | None], caplog: pytest.LogCaptureFixture
) -> None:
    state, changes = read(*records)
    found = state.snapshot().connectors["c"]
    assert (found.task_configs, found.applied_config) == ((), None)
    assert found.task_configs_offset == len(records) - 1
    assert changes[-1] == PutTaskConfigs("c", ())
    assert "Connector c: the config topic contains" in caplog.text


def test_commit_record_with_a_huge_task_count_allocates_no_memory_for_its_tasks() -> None:
    found = connector_after(CONNECTOR, TASK_0, commit(10**300))
    assert (found.task_configs, found.applied_config) == ((), None)


def test_complete_commit_after_an_incomplete_commit_restores_the_tasks_of_the_connector() -> None:
    found = connector_after(CONNECTOR, None, TASK_1, commit(2), TASK_0, TASK_1, commit(2))
    assert [config["n"] for config in found.task_configs] == ["0", "1"]
    assert found.applied_config == CONFIG


def test_task_records_of_an_incomplete_commit_are_not_used_by_later_commits() -> None:
    assert tasks_after(CONNECTOR, None, TASK_1, commit(2), TASK_0, commit(2)) == []


def test_task_and_commit_records_of_a_deleted_connector_are_ignored_after_compaction(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Compaction has removed the configuration of the deleted connector and its tombstone."""
    state, changes = read(None, TASK_0, commit(1))
    assert state.snapshot() == ConfigSnapshot(3, {})
    assert changes == [None, None]
    assert caplog.text == ""


def test_task_and_commit_records_before_the_connector_record_are_ignored() -> None:
    ignoring = ConnectorState(CONFIG, TargetState.STARTED, 2, has_ignored_tasks=True)
    assert connector_after(TASK_0, commit(1), CONNECTOR) == ignoring
    assert connector_after(TASK_0, commit(1), CONNECTOR, commit(0)).has_ignored_tasks is False
    assert connector_after(TASK_0, commit(1), ("connector-c", None), CONNECTOR).has_ignored_tasks is False
    assert tasks_after(TASK_0, commit(1), CONNECTOR, commit(1)) == []


def test_uncommitted_task_records_of_a_deleted_connector_are_not_used_by_later_commits() -> None:
    assert tasks_after(CONNECTOR, TASK_0, ("connector-c", None), CONNECTOR, commit(1)) == []


def test_task_number_in_a_record_key_is_the_text_after_the_last_hyphen() -> None:
    state, _ = read(
        ("connector-a-1", '{"properties":{}}'),
        ("task-a-1-0", '{"properties":{"n":"0"}}'),
        ("commit-a-1", '{"tasks":1}'),
    )
    assert list(state.snapshot().connectors["a-1"].task_configs) == [{"n": "0"}]


def test_task_configurations_of_a_connector_with_more_than_10_tasks_are_in_numeric_order() -> None:
    tasks = [(f"task-c-{number}", f'{{"properties":{{"n":"{number}"}}}}') for number in reversed(range(12))]
    assert tasks_after(CONNECTOR, *tasks, commit(12)) == [str(number) for number in range(12)]


# Requests, levels and keys


@pytest.mark.parametrize(
    ("key", "value", "change"),
    [
        (
            "restart-connector-c",
            '{"include-tasks":true,"only-failed":false}',
            RequestRestart("c", include_tasks=True, only_failed=False),
        ),
        (
            "restart-connector-c",
            '{"include-tasks":"true"}',
            RequestRestart("c", include_tasks=False, only_failed=False),
        ),
        ("logger-cluster-org.x", '{"level":"DEBUG"}', PutLogLevel("org.x", "DEBUG")),
        (
            "session-key",
            '{"key":"c2VjcmV0","algorithm":"HmacSHA256","creation-timestamp":17}',
            PutSessionKey("c2VjcmV0", "HmacSHA256", 17),
        ),
    ],
)
def test_records_of_restart_requests_and_log_levels_and_session_keys_are_read_as_changes(
    key: str, value: str, change: ConfigChange
) -> None:
    state, changes = read((key, value))
    assert changes == [change]
    expected_key = change if isinstance(change, PutSessionKey) else None
    assert state.snapshot() == ConfigSnapshot(1, {}, expected_key)


def test_task_count_record_is_skipped_without_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Kafka Connect writes this record, whose key is `tasks-fencing-CONNECTOR`, for exactly-once source connectors."""
    state, changes = read(("tasks-fencing-c", '{"task-count":3}'))
    assert (changes, state.snapshot().offset, caplog.text) == ([None], 1, "")


# Records that cannot be read

SESSION_KEY = ("session-key", '{"key":"c2VjcmV0","algorithm":"HmacSHA256","creation-timestamp":17}')


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unknown-c", "{}"),
        ("connectorc", "{}"),
        ("connector-c", "[]"),
        ("connector-c", "17"),
        ("connector-c", "{}"),
        ("connector-c", '{"properties":[]}'),
        ("connector-c", "{"),
        ("connector-c", b"\xff\xfe"),
        ("connector-c", "[" * 100_000),
        ("target-state-c", '{"state":"RESTING"}'),
        ("target-state-c", "{}"),
        ("target-state-c", '"PAUSED"'),
        ("task-c-0", None),
        ("task-c-0", "{}"),
        ("task-c-x", '{"properties":{}}'),
        ("task-c-", '{"properties":{}}'),
        ("task-0", '{"properties":{}}'),
        ("commit-c", None),
        ("commit-c", '{"tasks":"many"}'),
        ("commit-c", "{}"),
        ("commit-c", '{"tasks":1e300}'),
        ("commit-c", '{"tasks":2.0}'),
        ("commit-c", '{"tasks":true}'),
        ("commit-c", '{"tasks":-1}'),
        ("session-key", None),
        ("session-key", '{"key":"c2VjcmV0","algorithm":"HmacSHA256"}'),
        ("session-key", '{"key":5,"algorithm":"HmacSHA256","creation-timestamp":17}'),
        ("session-key", '{"key":"?","algorithm":"HmacSHA256","creation-timestamp":17}'),
        ("restart-connector-c", "true"),
        ("logger-cluster-x", "{}"),
    ],
)
def test_config_topic_record_with_an_invalid_key_or_value_is_logged_and_skipped(
    key: str, value: str | bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    before = (CONNECTOR, PAUSED, TASK_0, TASK_1, commit(2), SESSION_KEY, NEW_TASK_0, TASK_1)
    state, changes = read(*before, (key, value))
    expected = read(*before)[0].snapshot()
    assert changes[-1] is None
    assert state.snapshot() == replace(expected, offset=state.snapshot().offset)
    [line] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "offset 8" in line.getMessage()
    assert key in line.getMessage()
    # The record does not affect earlier records: the uncommitted configuration of task 0 is still known.
    state.apply(9, b"commit-c", b'{"tasks":2}')
    assert [config["n"] for config in state.snapshot().connectors["c"].task_configs] == ["new", "1"]


@pytest.mark.parametrize("key", [None, b"", b"\xff"])
def test_config_topic_record_whose_key_is_missing_empty_or_not_utf_8_is_logged_and_skipped(
    key: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    state = ConfigTopicState()
    assert state.apply(3, key, b"{}") is None
    assert state.snapshot() == ConfigSnapshot(4, {})
    assert "offset 3" in caplog.text


@pytest.mark.parametrize("key", ["restart-connector-c", "logger-cluster-x"])
def test_tombstone_of_a_restart_request_or_log_level_has_no_effect(key: str) -> None:
    state, changes = read((key, None))
    assert (changes, state.snapshot()) == ([None], ConfigSnapshot(1, {}))


# Reading what `steps` writes

NAMES = st.sampled_from(["a", "a-1", "ä"])
CONFIGS = st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
TARGETS = st.sampled_from(TargetState)
CHANGES = st.one_of(
    st.builds(PutConnector, NAMES, CONFIGS, st.none() | TARGETS),
    st.builds(DeleteConnector, NAMES),
    st.builds(PutTaskConfigs, NAMES, st.lists(CONFIGS, max_size=3)),
    st.builds(PutTargetState, NAMES, TARGETS),
    st.builds(RequestRestart, NAMES, st.booleans(), st.booleans()),
    st.builds(PutSessionKey, st.just("c2VjcmV0"), st.just("HmacSHA256"), st.integers(0, 2**62)),
    st.builds(PutLogLevel, NAMES, st.just("INFO")),
)


def write(changes: Sequence[ConfigChange]) -> tuple[list[tuple[bytes, bytes | None]], ConfigSnapshot]:
    """Return the records that the function `steps` creates for the changes, and the snapshot after the changes.

    The snapshot is computed with ConfigSnapshot.apply.
    """
    records, expected = list[tuple[bytes, bytes | None]](), ConfigSnapshot()
    for change in changes:
        if isinstance(change, PutTargetState | PutTaskConfigs) and change.connector not in expected.connectors:
            continue  # the herder rejects such a change, because a later connector of this name would inherit it
        records += [(key.encode(), value) for step in steps(change) for key, value in step]
        expected = expected.apply(len(records) - 1, change)
    return records, replace(expected, offset=len(records) if records else -1)


def tuples(snapshot: ConfigSnapshot) -> ConfigSnapshot:
    connectors = {
        name: replace(state, task_configs=tuple(state.task_configs)) for name, state in snapshot.connectors.items()
    }
    return replace(snapshot, connectors=connectors)


@given(changes=st.lists(CHANGES, max_size=12))
def test_config_changes_that_are_written_as_records_and_read_again_result_in_the_same_snapshot(
    changes: list[ConfigChange],
) -> None:
    records, expected = write(changes)
    state = ConfigTopicState()
    for offset, (key, value) in enumerate(records):
        state.apply(offset, key, value)
    found = tuples(state.snapshot())
    assert found == tuples(expected)
    assert list(found.connectors) == list(expected.connectors)


@given(changes=st.lists(CHANGES, max_size=12))
def test_compaction_of_the_config_topic_keeps_all_connectors_and_target_states(changes: list[ConfigChange]) -> None:
    """Compaction keeps the last record of each key. Afterwards, a connector has all of its tasks or no tasks."""
    records, expected = write(changes)
    last = {key: offset for offset, (key, _) in enumerate(records)}
    state = ConfigTopicState()
    for offset, (key, value) in enumerate(records):
        if last[key] == offset:
            state.apply(offset, key, value)
    found = state.snapshot()
    assert found.session_key == expected.session_key
    assert found.connectors.keys() == expected.connectors.keys()
    for name, connector in found.connectors.items():
        wanted = expected.connectors[name]
        assert (connector.config, connector.target) == (wanted.config, wanted.target)
        assert connector.config_offset == wanted.config_offset
        if connector.task_configs:
            assert list(connector.task_configs) == list(wanted.task_configs)
