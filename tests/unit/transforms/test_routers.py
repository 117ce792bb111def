from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.records import SourceRecord
from support.transforms import failures, make, records, sink, source


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
def test_regex_router(regex: str, replacement: str, topic: str, routed: str) -> None:
    router = make("org.apache.kafka.connect.transforms.RegexRouter", regex=regex, replacement=replacement)
    batch = router.apply_batch(sink(["a"], topic=topic))
    assert (batch.topic, batch.original_topic) == (routed, topic)
    assert router.apply(SourceRecord(topic=topic)).topic == routed


def test_regex_router_settings() -> None:
    with pytest.raises(ConfigErrors, match="Invalid regex"):
        make("RegexRouter", regex="(", replacement="x")
    with pytest.raises(ConfigErrors, match="No group 1"):
        make("RegexRouter", regex="a", replacement="$1")


def test_timestamp_router() -> None:
    router = make("TimestampRouter", topic__format="ts-${topic}-${timestamp}", timestamp__format="yyyyMM")
    made = records(router.apply_batch(source(["a", "b", "c"], timestamps=[1483425001864, 1483425001865, 0])))
    assert [(record.topic, record.value) for record in made] == [
        ("ts-test-201701", "a"),
        ("ts-test-201701", "b"),
        ("ts-test-197001", "c"),
    ]
    assert "Timestamp missing" in str(failures(router, source(["a", "b"], timestamps=[1, None]))[1])
