"""Derives the client configurations of a task from those of the worker and connector, as Kafka Connect does.

Connect's own settings are overridden by the worker's `producer.*`, `consumer.*` and `admin.*` keys, and these are
overridden by the connector's `*.override.*` keys. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from headrace.runtime.worker_config import is_interceptor_key, worker_value
from headrace_broker.client.config import ClientConfig

Properties = dict[str, str]

# One fetch response waits while the task processes the previous response. Kafka's default of 50 MB would hardly reduce
# the number of requests.
_FETCH_BYTES_MAX = "8388608"

_IN_FLIGHT = "max.in.flight.requests.per.connection"
_IN_FLIGHT_MAX = 5

# Kafka Connect's producers send one request at a time, without idempotence. These producers are idempotent (the
# client's default), so that the records stay in order with five requests in flight.
_PRODUCER = {
    "acks": "all",
    "max.in.flight.requests.per.connection": "5",
    "delivery.timeout.ms": "2147483647",
    "max.block.ms": "9223372036854775807",
}


def producer_properties(worker: Mapping[str, str], connector: Mapping[str, str], client_id: str) -> Properties:
    """Return the producer configuration of a source task or of a dead letter queue."""
    return _common(worker, client_id) | _PRODUCER | _layers(worker, connector, "producer.")


def parse_producer(properties: Mapping[str, str]) -> ClientConfig:
    """Parse a producer configuration. Raises ClientConfigError.

    Settings that exclude idempotence disable it with a warning, but are errors if enable.idempotence=true is set. Here,
    more than five requests in flight are such a setting, although the client itself would reject this setting.
    """
    in_flight = properties.get(_IN_FLIGHT, "5").strip()
    if "enable.idempotence" in properties or not in_flight.isdecimal() or int(in_flight) <= _IN_FLIGHT_MAX:
        return ClientConfig.from_properties(properties, kind="producer")
    config = ClientConfig.from_properties({**properties, "enable.idempotence": "false"}, kind="producer")
    warning = f"enable.idempotence: disabled; for idempotence, {_IN_FLIGHT} must be at most {_IN_FLIGHT_MAX}"
    return replace(config, warnings=(warning, *config.warnings))


def source_producer_properties(worker: Mapping[str, str], connector: Mapping[str, str], task: str) -> Properties:
    """Return the producer configuration of source task `<connector>-<n>`."""
    return producer_properties(worker, connector, f"connector-producer-{task}")


def dead_letter_producer_properties(worker: Mapping[str, str], connector: Mapping[str, str], task: str) -> Properties:
    """Return the producer configuration of a sink task's dead letter queue."""
    return producer_properties(worker, connector, f"connector-dlq-producer-{task}")


def consumer_properties(worker: Mapping[str, str], connector: Mapping[str, str], task: str) -> Properties:
    """Return the consumer configuration of sink task `<connector>-<n>`, in group `connect-<connector>`."""
    defaults = {
        "group.id": f"connect-{connector['name']}",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "fetch.max.bytes": _FETCH_BYTES_MAX,
    }
    if worker_value(worker, "headrace.static.members"):
        defaults["group.instance.id"] = f"connector-consumer-{task}"
    return _common(worker, f"connector-consumer-{task}") | defaults | _layers(worker, connector, "consumer.")


def admin_properties(worker: Mapping[str, str], connector: Mapping[str, str], task: str) -> Properties:
    """Return the admin client configuration of a task. It also contains the worker's keys without a prefix."""
    bare = {key: value for key, value in worker.items() if key in _SHARED_CLIENT_KEYS}
    return bare | _common(worker, f"connector-adminclient-{task}") | _layers(worker, connector, "admin.")


class OffsetsTopicProperties(NamedTuple):
    """The configurations of the clients for a connector's own offsets topic."""

    admin: Properties
    consumer: Properties
    producer: Properties


def offsets_topic_properties(
    worker: Mapping[str, str], connector: Mapping[str, str], name: str
) -> OffsetsTopicProperties:
    """Return the configurations of the clients for a source connector's own offsets topic (KIP-618)."""
    own = worker_properties(worker)
    return OffsetsTopicProperties(
        admin_properties(worker, connector, f"{name}-offsets"),
        own | {"client.id": f"connector-consumer-{name}-offsets"} | _layers(worker, connector, "consumer."),
        own | {"client.id": f"connector-producer-{name}-offsets"} | _layers(worker, connector, "producer."),
    )


def worker_properties(worker: Mapping[str, str]) -> Properties:
    """Return the configuration of a distributed worker's own clients, for the internal topics and the group."""
    own = {key: value for key, value in worker.items() if key in _SHARED_CLIENT_KEYS}
    client_id = "-".join(filter(None, (worker.get("group.id"), worker.get("client.id"))))
    return own | {"bootstrap.servers": worker["bootstrap.servers"], "client.id": client_id}


_SHARED_CLIENT_KEYS = frozenset(
    {
        "client.dns.lookup",
        "metadata.max.age.ms",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "request.timeout.ms",
        "retry.backoff.ms",
        "security.protocol",
    }
)


def _common(worker: Mapping[str, str], client_id: str) -> Properties:
    return {"bootstrap.servers": worker["bootstrap.servers"], "client.id": client_id}


def _layers(worker: Mapping[str, str], connector: Mapping[str, str], prefix: str) -> Properties:
    """Return the connector's overrides over the worker's keys, except the worker's interceptors.

    When the worker starts, it warns about its interceptors. The clients of each task would warn about them again.
    """
    own = {key: value for key, value in _under(worker, prefix).items() if not is_interceptor_key(key)}
    return own | _under(connector, prefix + "override.")


def _under(properties: Mapping[str, str], prefix: str) -> Properties:
    return {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}
