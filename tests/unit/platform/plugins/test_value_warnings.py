"""Tests of the warnings about valid values whose effect often surprises users."""

from __future__ import annotations

import pytest

from headrace.plugins.validation import validate_connector

WORKER = {"key.converter": "StringConverter", "value.converter": "JsonConverter"}
SOURCE = {"name": "c", "connector.class": "FileStreamSource", "topic": "t", "file": "/f"}
JDBC = {
    "name": "c",
    "connector.class": "JdbcSourceConnector",
    "connection.url": "jdbc:sqlite:/missing.db",
    "mode": "bulk",
    "topic.prefix": "t",
}
SINK = {"name": "c", "connector.class": "FileStreamSink", "topics": "t", "file": "/f"}
S3 = {
    "name": "c",
    "connector.class": "io.confluent.connect.s3.S3SinkConnector",
    "topics": "t",
    "s3.bucket.name": "b",
    "format.class": "JsonFormat",
    "flush.size": "3",
    "store.kafka.headers": "true",
    "headers.format.class": "JsonFormat",
}


def warnings(props: dict[str, str], worker: dict[str, str] = WORKER, **transform: str) -> list[str]:
    own = {f"transforms.x.{name.replace('__', '.')}": text for name, text in transform.items()}
    return validate_connector({**props, **own, **({"transforms": "x"} if own else {})}, worker).warnings


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("HH:mm:ss.SSSSSS", "SSSSSS is a number of milliseconds, not a fraction of a second"),
        ("HH:mm:ss.SSS", None),
        ("YYYY-MM-dd", "Y is the year of the week"),
        ("YYYY-'W'ww", None),
        ("yyyy-MM-DD", "D is the day of the year"),
        ("yyyy-DDD", None),
        ("yyyy-MM-dd'YDS'", None),
    ],
)
def test_date_patterns_with_a_surprising_effect_cause_a_warning(pattern: str, reason: str | None) -> None:
    for transform, key, more in (
        ("TimestampConverter$Value", "format", {"target__type": "string"}),
        ("TimestampRouter", "timestamp.format", {}),
        ("MessageTimestampRouter", "topic.timestamp.format", {"message__timestamp__keys": "at"}),
    ):
        found = warnings(SOURCE, **{"type": transform, key: pattern}, **more)
        expected = [f"Configuration transforms.x.{key}={pattern}: {reason}"] if reason else []
        assert [text[: len(start)] for text, start in zip(found, expected, strict=True)] == expected


def test_insertion_of_the_timestamp_causes_a_warning_if_the_source_sets_no_timestamps() -> None:
    for props, count in ((JDBC, 1), (SOURCE, 0), (SINK, 0)):
        found = warnings(props, type="InsertField$Value", timestamp__field="at")
        text = "transforms.x.timestamp.field=at: the records of this source have no timestamp"
        assert sum(text in warning for warning in found) == count
    assert not any("no timestamp" in text for text in warnings(JDBC, type="InsertField$Value", topic__field="at"))


@pytest.mark.parametrize(
    ("props", "worker", "is_warned"),
    [
        (SINK, WORKER, False),
        ({**SINK, "header.converter": "SimpleHeaderConverter"}, WORKER, True),
        ({**SINK, "header.converter": "StringConverter"}, WORKER, False),
        ({**SOURCE, "header.converter": "SimpleHeaderConverter"}, WORKER, False),
        (S3, WORKER, True),
        (S3, {**WORKER, "header.converter": "StringConverter"}, False),
        ({**S3, "header.converter": "StringConverter"}, WORKER, False),
        ({**S3, "store.kafka.headers": "false"}, WORKER, False),
    ],
)
def test_simple_header_converter_causes_a_warning_if_a_sink_reads_header_values(
    props: dict[str, str], worker: dict[str, str], is_warned: bool
) -> None:
    assert any("00123 becomes the number 123" in text for text in warnings(props, worker)) == is_warned


def test_topic_name_in_a_header_causes_a_warning_about_simple_header_converter() -> None:
    found = warnings(SINK, type="ExtractTopic$Header", field="topic")
    assert any("transforms.x.type=ExtractTopic$Header reads headers" in text for text in found)


@pytest.mark.parametrize(
    ("more", "is_silent"),
    [
        ({}, True),
        ({"errors.log.enable": "true"}, False),
        ({"errors.deadletterqueue.topic.name": "failed"}, False),
        ({"errors.tolerance": "none"}, False),
        ({"errors.log.enable": "maybe"}, False),
    ],
)
def test_tolerated_errors_that_nothing_reports_cause_a_warning(more: dict[str, str], is_silent: bool) -> None:
    for props in (SOURCE, SINK):
        found = warnings({**props, "errors.tolerance": "all", **more})
        assert [text.partition(":")[0] for text in found] == ["Configuration errors.tolerance=all"] * is_silent


def test_predicate_that_no_transform_has_causes_a_warning() -> None:
    predicate = {"predicates": "p", "predicates.p.type": "RecordIsTombstone"}
    [text] = warnings({**SOURCE, **predicate}, type="Filter")
    assert text.startswith("Configuration predicates: the predicate p has no effect; set transforms.NAME.predicate=p")
    assert warnings({**SOURCE, **predicate}, type="Filter", predicate="p") == []
