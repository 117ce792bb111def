"""Tests that the S3 connectors accept all keys of Confluent's connectors, and warn about keys without effect."""

from __future__ import annotations

import base64

import pytest

from headrace_connectors.s3.bucket import Bucket, proxy_url
from headrace_connectors.s3.connection import S3ConnectionConfig
from headrace_connectors.s3.sink_config import S3SinkConfig
from headrace_connectors.s3.source_config import S3SourceConfig
from headrace_connectors.s3.uploads import SinkBucket

CONNECTION_KEYS = """
    s3.bucket.name s3.region store.url s3.part.retries s3.retry.backoff.ms retry.backoff.ms s3.sse.customer.key
    s3.wan.mode s3.path.style.access.enabled s3.http.send.expect.continue s3.credentials.provider.class
    s3.credentials.provider.sts.role.arn aws.access.key.id aws.secret.access.key s3.proxy.url s3.proxy.user
    s3.proxy.password
"""
SINK_KEYS = """
    format.class flush.size storage.class topics.dir directory.delim file.delim filename.offset.zero.pad.width
    rotate.interval.ms rotate.schedule.interval.ms s3.part.size s3.compression.type s3.compression.level
    format.bytearray.extension format.bytearray.separator json.decimal.format avro.codec parquet.codec
    schema.compatibility schema.cache.size enhanced.avro.schema.support connect.meta.data allow.optional.map.keys
    partitioner.class partition.field.name partition.duration.ms path.format locale timezone timestamp.extractor
    timestamp.field behavior.on.null.values tombstone.encoded.partition report.null.values.to.dlq store.kafka.keys
    store.kafka.headers keys.format.class headers.format.class rotate.file.on.partition.change max.write.duration.ms
    s3.schema.partition.affix.type enable.conditional.writes max.files.scan.limit s3.object.tagging
    s3.object.tagging.key.value.pairs s3.object.behavior.on.tagging.error s3.acl.canned s3.ssea.name s3.sse.kms.key.id
    s3.send.digest s3.elastic.buffer.enable s3.elastic.buffer.init.capacity
"""
SOURCE_KEYS = """
    mode format.class topics.dir directory.delim partitioner.class partition.field.name path.format
    s3.poll.interval.ms record.batch.max.size folders topic.regex.list task.batch.size
    file.discovery.starting.timestamp behavior.on.error confluent.license confluent.topic.bootstrap.servers
    confluent.topic.replication.factor filename.regex
"""


@pytest.mark.parametrize(("model", "keys"), [(S3SinkConfig, SINK_KEYS), (S3SourceConfig, SOURCE_KEYS)])
def test_every_configuration_key_of_confluents_connector_is_accepted(
    model: type[S3ConnectionConfig], keys: str
) -> None:
    assert model.unknown_keys(dict.fromkeys([*CONNECTION_KEYS.split(), *keys.split()], "")) == []
    assert model.unknown_keys({"flush.sizes": "1"}) == ["flush.sizes"]


def sink(**more: str) -> S3SinkConfig:
    props = {"s3.bucket.name": "b", "format.class": "JsonFormat", "flush.size": "9"}
    return S3SinkConfig.parse(props | {key.replace("__", "."): value for key, value in more.items()})


def test_configuration_keys_without_effect_cause_warnings_only_if_they_are_set() -> None:
    assert sink().warnings_about_keys() == []
    warnings = sink(s3__elastic__buffer__enable="true", locale="de").warnings_about_keys()
    assert [text.split()[1] for text in warnings] == ["locale", "s3.elastic.buffer.enable"]
    for model in (S3SinkConfig, S3SourceConfig):
        assert set(model.without_effect) <= set(CONNECTION_KEYS.split() + SINK_KEYS.split() + SOURCE_KEYS.split()) | {
            "confluent.topic",
            "confluent.topic.",
        }


@pytest.mark.parametrize(
    ("props", "warned_keys"),
    [
        ({"max__files__scan__limit": "7"}, ["max.files.scan.limit"]),
        ({"schema__compatibility": "FORWARD"}, []),
        ({"storage__class": "io.confluent.connect.s3.storage.S3Storage"}, []),
        ({"storage__class": "com.example.Disk"}, ["storage.class=com.example.Disk"]),
    ],
)
def test_configuration_causes_a_warning_if_the_behavior_of_confluents_sink_would_differ(
    props: dict[str, str], warned_keys: list[str]
) -> None:
    assert [text.split()[1] for text in sink(**props).warnings_about_keys()] == warned_keys


SCHEDULE = {"rotate__schedule__interval__ms": "1000", "timezone": "UTC"}


@pytest.mark.parametrize(
    ("props", "is_kept"),
    [
        (SCHEDULE, True),
        (SCHEDULE | {"enable__conditional__writes": "false"}, False),
        (SCHEDULE | {"store__kafka__keys": "true"}, False),
        (SCHEDULE | {"store__kafka__headers": "true"}, False),
        ({"enable__conditional__writes": "true"}, False),
    ],
)
def test_existing_objects_are_kept_only_with_a_schedule_and_without_keys_and_headers(
    props: dict[str, str], is_kept: bool
) -> None:
    assert sink(**props).keeps_existing_objects == is_kept


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("store.kafka.keys", "true"),
        ("store.kafka.headers", "true"),
        ("keys.format.class", "io.confluent.connect.s3.format.json.JsonFormat"),
        ("headers.format.class", "JsonFormat"),
        ("flush.size", "1000"),
    ],
)
def test_source_accepts_keys_from_the_configuration_of_a_sink_with_a_warning(key: str, text: str) -> None:
    props = {"s3.bucket.name": "b", "format.class": "JsonFormat", key: text}
    assert S3SourceConfig.unknown_keys(props) == []
    (warning,) = S3SourceConfig.parse(props).warnings_about_keys()
    assert warning.startswith(f"Configuration {key} has no effect: the ")


def test_warning_says_that_keys_with_the_prefix_confluent_topic_have_no_effect() -> None:
    props = {"s3.bucket.name": "b", "format.class": "JsonFormat", "confluent.topic.bootstrap.servers": "localhost:9092"}
    (warning,) = S3SourceConfig.parse(props).warnings_about_keys()
    assert warning.startswith("Configuration confluent.topic.bootstrap.servers has no effect: ")


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("s3.credentials.provider.class", "com.example.Vault", "a Java class cannot be loaded"),
        ("store.url", "localhost:9000", "must look like http://host:port"),
        ("store.url", "http://user:secret@localhost:9000", "must look like http://host:port"),
        ("s3.sse.customer.key", "short", "32 bytes in base64"),
        ("s3.sse.kms.key.id", "alias/orders", "s3.ssea.name=aws:kms; set both"),
        ("s3.part.size", "1000", "at least 5242880"),
        ("aws.access.key.id", "only", "must be set"),
        ("s3.schema.partition.affix.type", "BOTH", "PREFIX"),
        ("s3.bucket.name", "", "non-empty"),
    ],
)
def test_s3_sink_configuration_error_contains_the_configuration_key_and_the_reason(
    key: str, value: str, reason: str
) -> None:
    props = {"s3.bucket.name": "b", "format.class": "JsonFormat", "flush.size": "9", key: value}
    (error,) = S3SinkConfig.errors(props)
    assert error.key in (key, "aws.secret.access.key")
    assert reason in str(error)


def test_user_and_password_in_the_proxy_url_are_percent_encoded() -> None:
    config = sink(s3__proxy__url="http://proxy:3128", s3__proxy__user="a@b", s3__proxy__password="x/y:z")
    assert proxy_url(config) == "http://a%40b:x%2Fy%3Az@proxy:3128"
    assert proxy_url(sink(s3__proxy__url="http://proxy:3128")) == "http://proxy:3128"


def test_configured_sse_customer_key_is_decoded_from_base64_for_s3_requests() -> None:
    secret = bytes(range(32))
    bucket = Bucket(sink(s3__sse__customer__key=base64.b64encode(secret).decode()))
    assert bucket.customer_key == {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": secret}


def test_customer_key_and_aes256_together_encrypt_with_the_customer_key_as_in_confluents_sink() -> None:
    secret = base64.b64encode(bytes(32)).decode()
    config = sink(s3__sse__customer__key=secret, s3__ssea__name="AES256")
    assert SinkBucket(config)._attributes == {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": bytes(32)}
    assert SinkBucket(sink(s3__ssea__name="AES256"))._attributes == {"ServerSideEncryption": "AES256"}


def test_error_for_a_customer_key_with_kms_encryption_says_what_to_set_and_hides_the_key() -> None:
    secret = base64.b64encode(bytes(32)).decode()
    props = {"s3.bucket.name": "b", "format.class": "JsonFormat", "flush.size": "9"}
    (error,) = S3SinkConfig.errors({**props, "s3.sse.customer.key": secret, "s3.ssea.name": "aws:kms"})
    assert "set s3.ssea.name=AES256, or remove the customer key" in str(error)
    assert secret not in str(error)


def test_blank_store_url_means_amazon_s3() -> None:
    bucket = Bucket(sink(store__url=""))
    assert bucket._client.meta.endpoint_url == "https://s3.us-west-2.amazonaws.com"
    assert bucket.address == "s3://b"
