"""Tests of kafka-consumer-groups: tables with Kafka's column widths, and the calculation of offset resets."""

from __future__ import annotations

import pytest

from headrace_broker.tools import group_tables as tables
from headrace_broker.tools import offset_resets as resets
from headrace_broker.tools.tool_error import ToolError


def test_offsets_table_has_the_columns_and_widths_of_kafkas_tool() -> None:
    rows = [
        tables.OffsetRow("topic", 0, 5, 9, 3, "consumer-1-abcdefghijkl", "/127.0.0.1", "client"),
        tables.OffsetRow("topic", 1, None, 9),
        tables.OffsetRow("a-topic-with-a-long-name", 10, 3, None),
    ]
    assert tables.offsets_table("g", rows, verbose=False) == [
        "",
        "GROUP           TOPIC                    PARTITION  CURRENT-OFFSET  LOG-END-OFFSET  LAG             "
        "CONSUMER-ID             HOST            CLIENT-ID",
        "g               topic                    0          5               9               4               "
        "consumer-1-abcdefghijkl /127.0.0.1      client",
        "g               topic                    1          -               9               -               "
        "-                       -               -",
        "g               a-topic-with-a-long-name 10         3               -               -               "
        "-                       -               -",
    ]
    verbose = tables.offsets_table("g", rows, verbose=True)
    assert verbose[1].split()[3:5] == ["LEADER-EPOCH", "CURRENT-OFFSET"]
    assert verbose[2].split()[3:5] == ["3", "5"]


def test_members_table_has_the_columns_and_widths_of_kafkas_tool() -> None:
    rows = [
        tables.MemberRow("id-1", "", "/h", "c", [("b", 1), ("a", 2), ("a", 0)]),
        tables.MemberRow("id-2", "", "/h", "c", []),
    ]
    assert tables.members_table("g", rows, verbose=False) == [
        "",
        "GROUP           CONSUMER-ID     HOST            CLIENT-ID       #PARTITIONS     ",
        "g               id-1            /h              c               3               ",
        "g               id-2            /h              c               0               ",
    ]
    verbose = tables.members_table("g", rows, verbose=True)
    assert verbose[1].endswith(
        "#PARTITIONS     CURRENT-EPOCH   CURRENT-ASSIGNMENT   TARGET-EPOCH    TARGET-ASSIGNMENT   "
    )
    assert verbose[2].endswith(
        "3               -               a:0,2;b:1            -               -                   "
    )
    static = tables.members_table("g", [tables.MemberRow("id", "instance", "/h", "c", [])], verbose=False)
    assert static[1].split() == ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]


def test_tables_of_group_states_and_of_groups_have_the_columns_and_widths_of_kafkas_tool() -> None:
    assert tables.state_table("g", "h:9092  (1)", "range", "Stable", 2, verbose=False) == [
        "",
        "GROUP           COORDINATOR (ID)          ASSIGNMENT-STRATEGY  STATE                #MEMBERS",
        "g               h:9092  (1)               range                Stable               2",
    ]
    assert tables.groups_table([("g", "Classic", "Empty")], with_type=True, with_state=True) == [
        "GROUP                     TYPE                 STATE               ",
        "g                         Classic              Empty               ",
    ]
    assert tables.groups_table([], with_type=False, with_state=True) == [
        "GROUP                     STATE               "
    ]


def test_tables_of_reset_offsets_and_of_deleted_offsets_have_the_columns_and_widths_of_kafkas_tool() -> None:
    assert tables.resets_table({"g": {("t", 10): 1, ("t", 9): 2}}) == [
        "",
        "GROUP           TOPIC           PARTITION  NEW-OFFSET",
        "g               t               9          2",
        "g               t               10         1",
    ]
    assert tables.resets_table({}) == [""]
    assert tables.deleted_offsets_table({("t", 1): None, ("s", -1): "x"}) == [
        "",
        "TOPIC           PARTITION  STATUS         ",
        "s               -          Error: x       ",
        "t               1          Successful     ",
    ]


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("PT0S", 0),
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P1DT1S", 86_401_000),
        ("PT1.5S", 1_500),
        ("PT-1.5S", -1_500),
        ("-PT6H", -21_600_000),
        ("PT0.0019S", 1),
        ("pt10m", 600_000),
    ],
)
def test_duration_option_is_converted_to_milliseconds(text: str, length_ms: int) -> None:
    assert resets.parse_duration_ms(text) == length_ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1H", "PT1X", "P1H"])
def test_invalid_duration_option_of_reset_offsets_is_rejected(text: str) -> None:
    with pytest.raises(ToolError, match="cannot be parsed to a Duration"):
        resets.parse_duration_ms(text)


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("2017-01-01T00:00:00.000", 1_483_228_800_000),
        ("2017-01-01T00:00:00.123Z", 1_483_228_800_123),
        ("2017-01-01T01:00:00.000+01:00", 1_483_228_800_000),
    ],
)
def test_datetime_option_is_converted_to_a_timestamp_and_is_read_as_utc_if_it_contains_no_time_zone(
    text: str, timestamp: int
) -> None:
    assert resets.parse_datetime_ms(text) == timestamp


@pytest.mark.parametrize("text", ["2017-01-01", "2017-13-01T00:00:00.000", "yesterdayT"])
def test_invalid_datetime_option_of_reset_offsets_is_rejected(text: str) -> None:
    with pytest.raises(ToolError, match="Error parsing timestamp"):
        resets.parse_datetime_ms(text)


def test_topic_option_of_reset_offsets_selects_all_or_the_listed_partitions_of_a_topic() -> None:
    assert resets.parse_topics(["a:0,2", "b"]) == ([("a", 0), ("a", 2)], ["b"])
    for bad in ("a:", "a:0:1"):
        with pytest.raises(ToolError, match="expected topic name and partitions"):
            resets.parse_topics([bad])
    with pytest.raises(ToolError, match="Invalid partition 'x'"):
        resets.parse_topics(["a:0,x"])


def test_reset_offsets_with_shift_by_is_rejected_for_a_partition_without_a_committed_offset() -> None:
    assert resets.shift_offsets([("t", 0)], {("t", 0): 5}, -7) == {("t", 0): -2}
    with pytest.raises(ToolError, match="Cannot shift offset for partition t-1"):
        resets.shift_offsets([("t", 1)], {("t", 0): 5}, 1)


def test_requested_offset_outside_the_log_is_replaced_by_the_earliest_or_latest_offset() -> None:
    """Each replaced offset causes a warning."""
    low, fine, high = ("t", 0), ("t", 1), ("t", 2)
    starts, ends = dict.fromkeys((low, fine, high), 10), dict.fromkeys((low, fine, high), 20)
    plan, warnings = resets.clamp_offsets({low: 9, fine: 20, high: 21}, starts, ends)
    assert plan == {low: 10, fine: 20, high: 20}
    assert warnings == [
        "New offset (9) is lower than earliest offset for topic partition t-0. Value will be set to 10.",
        "New offset (21) is higher than latest offset for topic partition t-2. Value will be set to 20.",
    ]


def test_reset_plan_that_was_exported_as_csv_can_be_imported_without_changes() -> None:
    plans = {"g,1": {("t", 1): 5, ("t", 0): 3}, "h": {("u", 0): 0}}
    text = resets.to_csv(plans, with_group=True)
    assert text == '"g,1",t,0,3\n"g,1",t,1,5\nh,u,0,0\n'
    assert resets.from_csv(text, ["g,1", "h"]) == plans
    assert resets.from_csv(text, ["g,1"]) == plans
    one = {"h": {("u", 0): 7}}
    assert resets.to_csv(one, with_group=False) == "u,0,7\n"
    assert resets.from_csv("u,0,7\n\n", ["h"]) == one


@pytest.mark.parametrize("line", ["t,0", "t,x,1", "g,t,0,-1", "a,b,c,d,e"])
def test_error_for_an_invalid_line_of_a_csv_plan_contains_the_line_number(line: str) -> None:
    with pytest.raises(ToolError, match="line 2 of the reset plan"):
        resets.from_csv(f"t,0,1\n{line}\n", ["g"])
    with pytest.raises(ToolError, match="line 1 of the reset plan"):
        resets.from_csv("t,0,1\n", ["g", "h"])
