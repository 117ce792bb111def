from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.records import SourceRecord
from support.transforms import make_plugin, records, sink_batch, source_batch, transform_errors


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "routed"),
    [
        ("orig", "new", "orig", "new"),
        ("orig", "new", "original", "original"),
        ("(.*)-(\\d\\d\\d\\d)(\\d\\d)(\\d\\d)", "$1-$2$3", "index-20160117", "index-201601"),
        ("(?<db>\\w+)\\.(.*)", "${db}_$2", "public.users", "public_users"),
        (".*", "prefix-$0", "t", "prefix-t"),
    ],
)
def test_regex_router_replaces_the_topic_only_if_the_whole_topic_matches(
    regex: str, replacement: str, topic: str, routed: str
) -> None:
    router = make_plugin("org.apache.kafka.connect.transforms.RegexRouter", regex=regex, replacement=replacement)
    batch = router.apply_batch(sink_batch(["a"], topic=topic))
    assert (batch.topic, batch.original_topic) == (routed, topic)
    assert router.apply(SourceRecord(topic=topic)).topic == routed


def test_regex_router_rejects_invalid_configuration() -> None:
    with pytest.raises(ConfigErrors, match="Invalid regex"):
        make_plugin("RegexRouter", regex="(", replacement="x")
    with pytest.raises(ConfigErrors, match="No group 1"):
        make_plugin("RegexRouter", regex="a", replacement="$1")


def test_timestamp_router_adds_the_formatted_record_timestamp_to_the_topic_name() -> None:
    router = make_plugin("TimestampRouter", topic__format="ts-${topic}-${timestamp}", timestamp__format="yyyyMM")
    transformed = records(
        router.apply_batch(source_batch(["a", "b", "c"], timestamps=[1483425001864, 1483425001865, 0]))
    )
    assert [(record.topic, record.value) for record in transformed] == [
        ("ts-test-201701", "a"),
        ("ts-test-201701", "b"),
        ("ts-test-197001", "c"),
    ]
    extreme = records(router.apply_batch(source_batch(["a", "b"], timestamps=[253402318799000, -(2**63)])))
    assert [record.topic for record in extreme] == ["ts-test-1000001", "ts-test-29226905512"]
    assert "Timestamp missing" in str(transform_errors(router, source_batch(["a", "b"], timestamps=[1, None]))[1])
