"""Configuration of the Elasticsearch sink, with the keys and defaults of Confluent's connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from headrace.api.config import Config, ConfigType, Importance, Password, key
from headrace.api.errors import ConfigError
from headrace_connectors.elasticsearch.names import forbidden_characters

_CONNECTION, _REQUESTS, _DOCUMENTS, _STREAMS = "Connection", "Requests", "Documents", "Data streams and aliases"
_TLS, _COMPAT = "TLS", "Accepted for compatibility"
_LONG = ConfigType.LONG
DATA_STREAM_USAGES = ("DATASTREAM", "ALIAS_DATASTREAM")


def _check_url(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must look like http://localhost:9200")
    if parts.username:
        raise ValueError("must not contain a user; set connection.username and connection.password")
    if parts.query or parts.fragment:
        raise ValueError("may contain only scheme, host, port and path")
    _ = parts.port  # raises ValueError for an invalid port


def _check_proxy_host(host: str) -> None:
    if any(character in host for character in "/:@"):
        raise ValueError("must be a host name or IPv4 address; set proxy.port, proxy.username and proxy.password")


class ElasticsearchSinkConfig(Config):
    """Configuration of the Elasticsearch sink."""

    without_effect: ClassVar[Mapping[str, str]] = {
        "type.name": "documents have no types",
        "auto.create.indices.at.start": "an index is created when its first record arrives",
        "max.connection.idle.time.ms": "a connection that the server closed is opened again",
    }

    urls: list[str] = key(
        "connection.url",
        doc="The servers: URLs such as http://localhost:9200, separated by commas.",
        importance=Importance.HIGH,
        group=_CONNECTION,
    )
    username: str | None = key("connection.username", default=None, doc="The user.", group=_CONNECTION)
    password: Password | None = key("connection.password", default=None, doc="The user's password.", group=_CONNECTION)
    api_key: Password | None = key(
        "connection.api.key",
        default=None,
        doc="The encoded API key, which is used instead of user and password. Confluent's connector does not have this "
        "setting.",
        group=_CONNECTION,
    )
    compression: bool = key(
        "connection.compression", default=False, doc="Whether requests are compressed with gzip.", group=_CONNECTION
    )
    connection_timeout_ms: int = key(
        "connection.timeout.ms",
        default=1000,
        at_least=1,
        doc="Milliseconds to wait for a connection.",
        group=_CONNECTION,
    )
    read_timeout_ms: int = key(
        "read.timeout.ms", default=3000, at_least=1, doc="Milliseconds to wait for a response.", group=_CONNECTION
    )
    idle_time_ms: int = key(
        "max.connection.idle.time.ms",
        default=60000,
        type=_LONG,
        doc="Has no effect: a connection that the server closed is opened again.",
        group=_COMPAT,
    )
    batch_size: int = key(
        "batch.size", default=2000, at_least=1, doc="Maximum number of documents in a bulk request.", group=_REQUESTS
    )
    bulk_bytes: int = key(
        "bulk.size.bytes",
        default=5242880,
        at_least=-1,
        type=_LONG,
        doc="Maximum size of a bulk request in bytes. A larger document is sent alone. -1: no limit.",
        group=_REQUESTS,
    )
    max_in_flight: int = key(
        "max.in.flight.requests",
        default=5,
        at_least=1,
        at_most=1000,
        doc="Maximum number of bulk requests in flight.",
        group=_REQUESTS,
    )
    max_buffered: int = key(
        "max.buffered.records",
        default=20000,
        at_least=1,
        doc="Number of records in memory beyond which the task pauses its partitions.",
        group=_REQUESTS,
    )
    linger_ms: int = key(
        "linger.ms",
        default=1,
        at_least=0,
        type=_LONG,
        doc="Milliseconds to wait for more records before a bulk request with fewer than batch.size documents is sent.",
        group=_REQUESTS,
    )
    flush_timeout_ms: int = key(
        "flush.timeout.ms",
        default=180000,
        at_least=1,
        type=_LONG,
        doc="Milliseconds that a flush waits for outstanding requests (flush.synchronously=true).",
        group=_REQUESTS,
    )
    flush_synchronously: bool = key(
        "flush.synchronously",
        default=False,
        doc="Whether an offset commit waits until all records are stored. By default it waits for at most 3 seconds, "
        "and commits the offset of the first record that is not stored.",
        group=_REQUESTS,
    )
    max_retries: int = key(
        "max.retries",
        default=5,
        at_least=0,
        doc="Maximum number of retries of a bulk request, or of those of its documents that the server rejected "
        "temporarily.",
        group=_REQUESTS,
    )
    retry_backoff_ms: int = key(
        "retry.backoff.ms",
        default=100,
        at_least=0,
        type=_LONG,
        doc="The sink waits before retry n for a random time from 0 to retry.backoff.ms * 2^n ms, at most a day.",
        group=_REQUESTS,
    )
    key_ignore: bool = key(
        "key.ignore",
        default=False,
        doc="Whether the id of a document is topic+partition+offset instead of the record's key.",
        importance=Importance.HIGH,
        group=_DOCUMENTS,
    )
    topic_key_ignore: list[str] = key(
        "topic.key.ignore", default=[], doc="Topics for which key.ignore is true.", group=_DOCUMENTS
    )
    schema_ignore: bool = key(
        "schema.ignore",
        default=False,
        doc="Whether the server derives the mapping from the documents. By default the sink creates it from the "
        "schema of the record.",
        group=_DOCUMENTS,
    )
    topic_schema_ignore: list[str] = key(
        "topic.schema.ignore", default=[], doc="Topics for which schema.ignore is true.", group=_DOCUMENTS
    )
    compact_map_entries: bool = key(
        "compact.map.entries",
        default=True,
        doc="Whether a map with string keys becomes an object. Other maps become lists of key and value.",
        group=_DOCUMENTS,
    )
    drop_invalid: bool = key(
        "drop.invalid.message",
        default=False,
        doc="Whether a record that cannot become a document is skipped with a warning. With errors.tolerance=all, the "
        "record is also written to the dead letter queue if one is configured. By default, errors.tolerance determines "
        "what happens to the record.",
        group=_DOCUMENTS,
    )
    autogenerated_ids: bool = key(
        "use.autogenerated.ids",
        default=False,
        doc="Whether the server generates the ids. A record that is written again becomes a second document.",
        group=_DOCUMENTS,
    )
    on_null_values: str = key(
        "behavior.on.null.values",
        default="FAIL",
        one_of=("IGNORE", "DELETE", "FAIL"),
        case_insensitive=True,
        doc="What happens to a record with a null value. IGNORE: it is skipped. DELETE: the document with its key is "
        "deleted. FAIL: it is an error.",
        group=_DOCUMENTS,
    )
    on_malformed: str = key(
        "behavior.on.malformed.documents",
        default="FAIL",
        one_of=("WARN", "IGNORE", "FAIL"),
        case_insensitive=True,
        doc="What happens to a document that the server rejects. WARN: it is skipped with a warning. IGNORE: it is "
        "skipped silently. FAIL: the task fails. With errors.tolerance=all, the record is also written to the dead "
        "letter queue if one is configured.",
        group=_DOCUMENTS,
    )
    version_header: str = key(
        "external.version.header",
        default="",
        doc="The record header that contains the document's version. Default: the version is the record's offset.",
        group=_DOCUMENTS,
    )
    write_method: str = key(
        "write.method",
        default="INSERT",
        one_of=("INSERT", "UPSERT"),
        case_insensitive=True,
        doc="INSERT replaces the document. UPSERT changes only the fields that the record contains.",
        group=_DOCUMENTS,
    )
    log_sensitive_data: bool = key(
        "log.sensitive.data",
        default=False,
        doc="Whether errors contain the server's reason, which may quote values of the document.",
        group=_DOCUMENTS,
    )
    stream_type: str = key(
        "data.stream.type",
        default="NONE",
        one_of=("LOGS", "METRICS", "NONE"),
        case_insensitive=True,
        doc="Write to the data stream <type>-<dataset>-<namespace>.",
        group=_STREAMS,
    )
    stream_dataset: str = key("data.stream.dataset", default="", doc="Dataset of the data stream.", group=_STREAMS)
    stream_namespace: str = key(
        "data.stream.namespace",
        default="${topic}",
        doc="Namespace of the data stream; ${topic} is replaced by the topic.",
        group=_STREAMS,
    )
    timestamp_fields: list[str] = key(
        "data.stream.timestamp.field",
        default=[],
        doc="Fields for @timestamp: the first field with a value is used. Default: the record's timestamp.",
        group=_STREAMS,
    )
    resource_usage: str = key(
        "external.resource.usage",
        default="DISABLED",
        one_of=("INDEX", "DATASTREAM", "ALIAS_INDEX", "ALIAS_DATASTREAM", "DISABLED"),
        case_insensitive=True,
        doc="Write to existing indexes, data streams or aliases (topic.to.external.resource.mapping).",
        group=_STREAMS,
    )
    resource_mapping: list[str] = key(
        "topic.to.external.resource.mapping",
        default=[],
        doc="Pairs topic:resource. There must be a pair for each topic.",
        group=_STREAMS,
    )
    max_mappings: int = key(
        "max.external.resource.mappings",
        default=15,
        at_least=1,
        doc="Maximum number of pairs in topic.to.external.resource.mapping.",
        group=_STREAMS,
    )
    security_protocol: str = key(
        "elastic.security.protocol",
        default="PLAINTEXT",
        one_of=("PLAINTEXT", "SSL"),
        case_insensitive=True,
        doc="SSL: all URLs must use https. A URL with https uses TLS with either value.",
        group=_TLS,
    )
    truststore: str | None = key(
        "elastic.https.ssl.truststore.location",
        default=None,
        doc="A file with the certificates to trust: PEM, JKS or PKCS#12. Default: the system's certificates.",
        group=_TLS,
    )
    truststore_certificates: Password | None = key(
        "elastic.https.ssl.truststore.certificates", default=None, doc="The certificates to trust as PEM.", group=_TLS
    )
    keystore: str | None = key(
        "elastic.https.ssl.keystore.location",
        default=None,
        doc="A file with the client's key and certificate: PEM, JKS or PKCS#12.",
        group=_TLS,
    )
    key_password: Password | None = key(
        "elastic.https.ssl.key.password", default=None, doc="The password of the client's key.", group=_TLS
    )
    identification: str = key(
        "elastic.https.ssl.endpoint.identification.algorithm",
        default="https",
        doc="An empty value disables the check of the server's host name.",
        group=_TLS,
    )
    truststore_password: Password | None = key(
        "elastic.https.ssl.truststore.password", default=None, doc="The password of a JKS or PKCS#12 file.", group=_TLS
    )
    keystore_password: Password | None = key(
        "elastic.https.ssl.keystore.password",
        default=None,
        doc="The password of a JKS or PKCS#12 file, and of the client's key if elastic.https.ssl.key.password is not "
        "set.",
        group=_TLS,
    )
    keystore_key: Password | None = key(
        "elastic.https.ssl.keystore.key",
        default=None,
        doc="The client's key as PEM, if elastic.https.ssl.keystore.location is not set.",
        group=_TLS,
    )
    keystore_certificate_chain: Password | None = key(
        "elastic.https.ssl.keystore.certificate.chain",
        default=None,
        doc="The client's certificate as PEM, and the certificates of its authorities.",
        group=_TLS,
    )
    enabled_protocols: str = key(
        "elastic.https.ssl.enabled.protocols",
        default="TLSv1.2,TLSv1.3",
        doc="The versions of TLS, separated by commas.",
        group=_TLS,
    )
    cipher_suites: str | None = key(
        "elastic.https.ssl.cipher.suites",
        default=None,
        doc="The cipher suites, separated by commas. Default: all. If one of them is a suite of TLSv1.3, all suites "
        "of TLSv1.3 are enabled.",
        group=_TLS,
    )
    truststore_type: str = key(
        "elastic.https.ssl.truststore.type",
        default="JKS",
        doc="JKS, PKCS12 or PEM. The content of the file determines its type, not this value.",
        group=_COMPAT,
    )
    keystore_type: str = key(
        "elastic.https.ssl.keystore.type",
        default="JKS",
        doc="JKS, PKCS12 or PEM. The content of the file determines its type, not this value.",
        group=_COMPAT,
    )
    proxy_host: str = key(
        "proxy.host",
        default="",
        doc="The host of the HTTP proxy, without the port. Default: no proxy.",
        validator=_check_proxy_host,
        group=_CONNECTION,
    )
    proxy_port: int = key("proxy.port", default=8080, at_least=1, doc="The port of the proxy.", group=_CONNECTION)
    proxy_username: str = key(
        "proxy.username", default="", doc="The user of the proxy (basic authentication).", group=_CONNECTION
    )
    proxy_password: Password | None = key(
        "proxy.password", default=None, doc="The password of the proxy's user.", group=_CONNECTION
    )
    kerberos_principal: str | None = key(
        "kerberos.user.principal", default=None, doc="Not supported: it must be empty.", group=_COMPAT
    )
    kerberos_keytab: str | None = key(
        "kerberos.keytab.path", default=None, doc="Not supported: it must be empty.", group=_COMPAT
    )
    type_name: str | None = key("type.name", default=None, doc="Has no effect: documents have no types.", group=_COMPAT)
    index_map: str | None = key(
        "topic.index.map",
        default=None,
        doc="Not supported: it must be empty. Use topic.to.external.resource.mapping or the transform RegexRouter.",
        group=_COMPAT,
    )
    auto_create: str | None = key(
        "auto.create.indices.at.start",
        default=None,
        doc="Has no effect: an index is created when its first record arrives.",
        group=_COMPAT,
    )

    @property
    def is_data_stream(self) -> bool:
        """Whether documents are written to data streams."""
        return self.stream_type.upper() != "NONE" or self.resource_usage.upper() in DATA_STREAM_USAGES

    @property
    def is_upsert(self) -> bool:
        """Whether a record changes fields of its document instead of replacing the document."""
        return self.write_method.upper() == "UPSERT"

    @property
    def resources(self) -> dict[str, str]:
        """The existing index, data stream or alias for each topic. Empty unless `external.resource.usage` is set."""
        if self.resource_usage.upper() == "DISABLED":
            return {}
        return {
            topic.strip(): name.strip() for topic, _, name in (pair.partition(":") for pair in self.resource_mapping)
        }

    def ignores_key(self, topic: str) -> bool:
        """Whether the ids of the topic's documents consist of topic, partition and offset, not of the record key."""
        return self.key_ignore or topic in self.topic_key_ignore

    def ignores_schema(self, topic: str) -> bool:
        """Whether the server derives the mapping of the topic's index from the documents."""
        return self.schema_ignore or topic in self.topic_schema_ignore

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors in keys and in combinations of keys. `values` maps each key to its parsed value."""
        urls = values.get("connection.url")
        if urls is not None:
            yield from _url_errors(urls, str(values.get("elastic.security.protocol")).upper() == "SSL")
        if (values.get("connection.username") is None) != (values.get("connection.password") is None):
            name = "connection.username" if values.get("connection.username") is None else "connection.password"
            yield ConfigError(name, None, "connection.username and connection.password must be set together")
        for name in ("kerberos.user.principal", "kerberos.keytab.path"):
            if values.get(name):
                yield ConfigError(name, values[name], "is not supported; remove the key")
        if values.get("topic.index.map"):
            reason = "is not supported; use topic.to.external.resource.mapping or the transform RegexRouter instead"
            yield ConfigError("topic.index.map", values["topic.index.map"], reason)
        if values.get("proxy.host") and (not values.get("proxy.username")) != (values.get("proxy.password") is None):
            name = "proxy.password" if values.get("proxy.username") else "proxy.username"
            yield ConfigError(name, None, "proxy.username and proxy.password must be set together")
        if values.get("write.method") is not None and values["write.method"].upper() == "UPSERT":
            if values.get("key.ignore"):
                yield ConfigError("key.ignore", "true", "must be false for write.method=UPSERT")
            if values.get("use.autogenerated.ids"):
                yield ConfigError("use.autogenerated.ids", "true", "must be false for write.method=UPSERT")
        yield from _target_errors(values)


def _url_errors(urls: list[str], needs_tls: bool) -> Iterator[ConfigError]:
    if not urls:
        yield ConfigError("connection.url", "", "must name at least one server")
    for url in urls:
        try:
            _check_url(url)
        except ValueError as error:
            yield ConfigError("connection.url", url, str(error))
        if needs_tls and not url.startswith("https:"):
            yield ConfigError("connection.url", url, "must use https, because elastic.security.protocol is SSL")


def _target_errors(values: Mapping[str, Any]) -> Iterator[ConfigError]:
    stream = str(values.get("data.stream.type")).upper()
    usage = str(values.get("external.resource.usage")).upper()
    pairs = values.get("topic.to.external.resource.mapping") or []
    is_stream = (stream in ("LOGS", "METRICS")) or usage in DATA_STREAM_USAGES
    if stream in ("LOGS", "METRICS") and not values.get("data.stream.dataset"):
        yield ConfigError("data.stream.dataset", "", "must be set if data.stream.type is set")
    bad = forbidden_characters(str(values.get("data.stream.dataset")))
    if bad:
        yield ConfigError("data.stream.dataset", values["data.stream.dataset"], f"may not contain {bad[0]!r}")
    if is_stream and str(values.get("write.method")).upper() == "UPSERT":
        yield ConfigError("write.method", "UPSERT", "must be INSERT for data streams")
    if is_stream and str(values.get("behavior.on.null.values")).upper() == "DELETE":
        yield ConfigError("behavior.on.null.values", "DELETE", "data streams do not support deletes")
    if usage in ("DISABLED", "NONE"):
        if pairs:
            yield ConfigError("external.resource.usage", usage, "must be set for topic.to.external.resource.mapping")
        return
    if stream in ("LOGS", "METRICS"):
        yield ConfigError("data.stream.type", stream, "must be NONE if external.resource.usage is set")
    if not pairs:
        yield ConfigError("topic.to.external.resource.mapping", "", "must be set for external.resource.usage")
    if len(pairs) > (values.get("max.external.resource.mappings") or len(pairs)):
        yield ConfigError(
            "topic.to.external.resource.mapping",
            None,
            f"has {len(pairs)} pairs, more than max.external.resource.mappings",
        )
    for pair in pairs:
        topic, _, name = pair.partition(":")
        if not topic.strip() or not name.strip():
            yield ConfigError("topic.to.external.resource.mapping", pair, "must have the format topic:resource")
