"""Configs of the resources that are neither topics nor brokers: groups, client metrics subscriptions, broker loggers.

These configs cannot be altered on this broker, so DescribeConfigs marks them as read-only. It returns Apache Kafka's
defaults for any group id and any subscription name, and the levels of this process's loggers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from headrace_broker.log.config import ConfigType
from headrace_broker.protocol.errors import ApiError, ErrorCode

BROKER_LOGGER_RESOURCE = 8
CLIENT_METRICS_RESOURCE = 16
GROUP_RESOURCE = 32


@dataclass(frozen=True, slots=True)
class DefaultConfig:
    """A config and its default value.

    If a broker config of Apache Kafka sets this default value, `broker_name` contains the name of the broker config.
    """

    name: str
    type: ConfigType
    value: str
    doc: str
    broker_name: str | None = None


def _group_config(name: str, value: str, doc: str, type_: ConfigType = ConfigType.INT) -> DefaultConfig:
    return DefaultConfig(name, type_, value, doc, broker_name=f"group.{name}")


_CONSUMER_PROTOCOL = "a group of the consumer protocol (KIP-848), which this broker does not support yet"
_SHARE = "a share group (KIP-932), which this broker does not support yet"
_STREAMS = "a streams group (KIP-1071), which this broker does not support yet"

GROUP_CONFIGS = (
    _group_config("consumer.assignment.interval.ms", "1000", f"Time between assignments of {_CONSUMER_PROTOCOL}."),
    _group_config("consumer.heartbeat.interval.ms", "5000", f"Heartbeat interval of {_CONSUMER_PROTOCOL}."),
    _group_config("consumer.session.timeout.ms", "45000", f"Session timeout of {_CONSUMER_PROTOCOL}."),
    _group_config("share.assignment.interval.ms", "1000", f"Time between assignments of {_SHARE}."),
    DefaultConfig("share.auto.offset.reset", ConfigType.STRING, "latest", f"Start offset of {_SHARE}."),
    _group_config("share.delivery.count.limit", "5", f"Delivery attempts for a record of {_SHARE}."),
    _group_config("share.heartbeat.interval.ms", "5000", f"Heartbeat interval of {_SHARE}."),
    DefaultConfig("share.isolation.level", ConfigType.STRING, "read_uncommitted", f"Isolation level of {_SHARE}."),
    _group_config("share.partition.max.record.locks", "2000", f"Locked records in a partition of {_SHARE}."),
    _group_config("share.record.lock.duration.ms", "30000", f"How long a record stays locked in {_SHARE}."),
    DefaultConfig("share.renew.acknowledge.enable", ConfigType.BOOLEAN, "true", f"Whether locks renew in {_SHARE}."),
    _group_config("share.session.timeout.ms", "45000", f"Session timeout of {_SHARE}."),
    _group_config("streams.assignment.interval.ms", "1000", f"Time between assignments of {_STREAMS}."),
    _group_config("streams.heartbeat.interval.ms", "5000", f"Heartbeat interval of {_STREAMS}."),
    _group_config("streams.initial.rebalance.delay.ms", "3000", f"Delay before the first rebalance of {_STREAMS}."),
    _group_config("streams.num.standby.replicas", "0", f"Standby replicas of each task of {_STREAMS}."),
    _group_config("streams.session.timeout.ms", "45000", f"Session timeout of {_STREAMS}."),
)

CLIENT_METRICS_CONFIGS = (
    DefaultConfig("interval.ms", ConfigType.INT, "300000", "Time between two pushes of a client's metrics (KIP-714)."),
    DefaultConfig("match", ConfigType.LIST, "", "Patterns that select the clients."),
    DefaultConfig("metrics", ConfigType.LIST, "", "Prefixes of the metrics' names; empty selects none."),
)


def check_broker_id(name: str, own_id: int, expectation: str) -> None:
    """Raise ApiError INVALID_REQUEST, with Apache Kafka's message, unless the resource name is this broker's id.

    `expectation` is the part of the message between this broker's id and `name`.
    """
    try:
        broker_id = int(name)
    except ValueError:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Broker id must be an integer, but it is: {name}") from None
    if broker_id != own_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {own_id}{expectation} {name}")


_LOG4J_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL", "NOTSET": "TRACE"}


def logger_levels() -> list[tuple[str, str]]:
    """Return (logger, level) for the root logger and each logger of this process, with Log4j's level names."""
    names = sorted(name for name, item in logging.root.manager.loggerDict.items() if isinstance(item, logging.Logger))
    return [("root", _level_of(logging.root)), *((name, _level_of(logging.getLogger(name))) for name in names)]


def _level_of(logger: logging.Logger) -> str:
    name = logging.getLevelName(logger.getEffectiveLevel())
    return _LOG4J_LEVELS.get(name, name)
