"""The keys of worker configurations with their types, defaults and documentation, as in Kafka Connect.

This module does no I/O.
"""

from __future__ import annotations

from typing import Any

from headrace.api.config_def import REQUIRED, ConfigDef, ConfigKey, ConfigType, Importance
from headrace.plugins.creation import DEFAULT_CONVERTERS
from headrace.runtime.override_policy import POLICIES, known_policy
from headrace.runtime.rest_config import Listener, OriginPatterns, header_rules, is_basic_auth_enabled

ISOLATIONS = ("process", "connector", "thread")
_BOOL, _STRING, _INT, _LONG, _LIST, _CLASS = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.LIST,
    ConfigType.CLASS,
)
ALGORITHMS = ("HmacSHA256", "HmacSHA1", "HmacMD5", "HmacSHA224", "HmacSHA384", "HmacSHA512")
"""Java's names of the algorithms for signatures of internal requests."""


def _not_negative(value: Any) -> None:
    if value is not None and value < 0:
        raise ValueError("Value must be at least 0")


def _positive(value: Any) -> None:
    if value is not None and value < 1:
        raise ValueError("Value must be at least 1")


def _not_blank(value: Any) -> None:
    if value is not None and not value.strip():
        raise ValueError("String must be non-empty")


def _port(value: Any) -> None:
    if value is not None and not 0 <= value <= 65535:
        raise ValueError("Value must be a port from 0 to 65535")


def _isolation(value: Any) -> None:
    if value not in ISOLATIONS:
        raise ValueError(f"String must be one of: {', '.join(ISOLATIONS)}")


def _policy(value: Any) -> None:
    if value is not None and known_policy(value) is None:
        raise ValueError(f"String must be one of: {', '.join(POLICIES)}")


def _listeners(values: Any) -> None:
    for value in values or ():
        Listener.parse(value)


def _one_listener_at_least(values: Any) -> None:
    if not values:
        raise ValueError("At least one listener is required")


def _headers(value: Any) -> None:
    header_rules(value or "")


def _extensions(values: Any) -> None:
    is_basic_auth_enabled(values or ())


def _origins(value: Any) -> None:
    OriginPatterns.parse(value or "")


def _scheme(value: Any) -> None:
    if value is not None and value.lower() not in ("http", "https"):
        raise ValueError("String must be one of: http, https")


def _key(name: str, type_: ConfigType, default: Any, doc: str, *validators: Any) -> ConfigKey:
    importance = Importance.HIGH if default is REQUIRED else Importance.LOW
    return ConfigKey(name, type_, default, doc, importance, validators=tuple(validators))


_COMMON = [
    _key("key.converter", _CLASS, REQUIRED, "Converter of record keys."),
    _key("value.converter", _CLASS, REQUIRED, "Converter of record values."),
    _key("header.converter", _CLASS, DEFAULT_CONVERTERS["header.converter"], "Converter of record headers."),
    _key("offset.flush.interval.ms", _LONG, 60_000, "Interval between offset commits, in ms.", _not_negative),
    _key("offset.flush.timeout.ms", _LONG, 5_000, "Timeout of an offset commit, in ms.", _not_negative),
    _key("task.shutdown.graceful.timeout.ms", _LONG, 5_000, "Timeout for tasks to stop, in ms.", _not_negative),
    _key("plugin.path", _LIST, None, "Directories with plug-ins."),
    _key("plugin.discovery", _STRING, "hybrid_warn", "Accepted but ignored; plug-ins are found by entry points."),
    _key("config.providers", _LIST, [], "Names of config providers."),
    _key(
        "connector.client.config.override.policy",
        _STRING,
        "All",
        "The client overrides that connectors may set: All, None, Principal or Allowlist.",
        _policy,
    ),
    _key("connector.client.config.override.allowlist", _LIST, [], "Permitted keys of the policy Allowlist."),
    _key("topic.creation.enable", _BOOL, True, "Apply topic.creation.* of source connectors."),
    _key("topic.tracking.enable", _BOOL, True, "Track the topics that connectors use."),
    _key("topic.tracking.allow.reset", _BOOL, True, "Allow requests to reset the tracked topics."),
    _key("listeners", _LIST, ["http://:8083"], "REST listeners.", _one_listener_at_least, _listeners),
    _key("rest.advertised.host.name", _STRING, None, "Host in the worker's id."),
    _key("rest.advertised.port", _INT, None, "Port in the worker's id.", _port),
    _key(
        "rest.advertised.listener",
        _STRING,
        None,
        "Scheme of the URL at which other workers reach this one: http or https. By default it is http if a listener "
        "has it.",
        _scheme,
    ),
    _key(
        "access.control.allow.origin",
        _STRING,
        "",
        "Origins of web pages that may use the REST API: regular expressions, or * for every origin.",
        _origins,
    ),
    _key(
        "access.control.allow.methods",
        _STRING,
        "",
        "Methods that web pages of other origins may use. By default they are GET, POST and HEAD.",
    ),
    _key("response.http.headers.config", _STRING, "", "Extra response headers.", _headers),
    _key(
        "admin.listeners",
        _LIST,
        None,
        "Listeners of the admin endpoints. By default these are the listeners; an empty list disables the endpoints.",
        _listeners,
    ),
    _key(
        "rest.extension.classes",
        _LIST,
        [],
        "REST extensions. The only one is BasicAuthSecurityRestExtension, which authenticates users with a password.",
        _extensions,
    ),
    _key(
        "rest.basic.auth.users.file",
        _STRING,
        None,
        "Properties file with the password of each user (user=password), for BasicAuthSecurityRestExtension. By "
        "default it is the file that the section KafkaConnect of the JAAS file in KAFKA_OPTS names.",
        _not_blank,
    ),
    _key(
        "task.isolation",
        _STRING,
        "process",
        "process: one process per task; connector: one process for all tasks of a connector; thread: all tasks run "
        "in the worker process.",
        _isolation,
    ),
    _key(
        "headrace.data.dir",
        _STRING,
        "headrace-data",
        "Directory of a standalone worker's embedded broker and offsets file. A relative path is relative to the "
        "working directory of the worker.",
    ),
    _key(
        "headrace.static.members",
        _BOOL,
        False,
        "Use static membership for sink tasks. A restarted task then replaces its member in the consumer group without "
        "a rebalance, even if the whole worker was killed. Do not set it if another worker runs a connector of the "
        "same name. The default is true with the embedded broker.",
    ),
    _key("connector.validation.timeout.ms", _LONG, 60_000, "Timeout of a call to a connector, in ms.", _positive),
]


def _python_transform(default: bool) -> ConfigKey:
    return _key(
        "python.transform.enable",
        _BOOL,
        default,
        "Permit the transform Python, which runs code from connector configurations in the tasks' processes. The "
        "default is true in a standalone worker, and false in a distributed worker, because whoever may create "
        "connectors over REST could run any code on it.",
    )


STANDALONE = ConfigDef(
    [
        _python_transform(True),
        _key("bootstrap.servers", _LIST, None, "Brokers. If unset, a standalone worker starts an embedded broker."),
        _key(
            "offset.storage.file.filename",
            _STRING,
            None,
            "The file in which source offsets are stored. By default, it is the file connect.offsets in "
            "headrace.data.dir.",
        ),
        *_COMMON,
    ]
)


def _one_of(*values: str) -> Any:
    def check(value: Any) -> None:
        if value not in values:
            raise ValueError(f"String must be one of: {', '.join(values)}")

    return check


def _partition_count(value: Any) -> None:
    if value != -1 and value < 1:
        raise ValueError("Number of partitions must be a positive number, or -1 to use the broker's default")


def _replication_factor(value: Any) -> None:
    if value != -1 and value < 1:
        raise ValueError("Replication factor must be a positive number, or -1 to use the broker's default")


def _algorithm(value: Any) -> None:
    for each in value if isinstance(value, list) else [value]:
        if each not in ALGORITHMS:
            raise ValueError(f"{each} is not supported; use {', '.join(ALGORITHMS)}")


def _only_disabled(value: Any) -> None:
    if value != "disabled":
        raise ValueError("exactly-once source connectors are not supported yet; set disabled")


def _topic_keys(prefix: str, what: str, partitions: int | None) -> list[ConfigKey]:
    keys = [
        _key(f"{prefix}.topic", _STRING, REQUIRED, f"The compacted topic with {what}.", _not_blank),
        _key(
            f"{prefix}.replication.factor", _INT, 3, f"Replication factor with which {prefix}.topic is created; -1 = "
            "the broker's default.", _replication_factor
        ),
    ]  # fmt: skip
    if partitions is not None:
        doc = f"Number of partitions with which {prefix}.topic is created; -1 = the broker's default."
        keys.append(_key(f"{prefix}.partitions", _INT, partitions, doc, _partition_count))
    return keys


DISTRIBUTED = ConfigDef(
    [
        _python_transform(False),
        _key("bootstrap.servers", _LIST, ["localhost:9092"], "Brokers."),
        _key(
            "group.id",
            _STRING,
            REQUIRED,
            "The worker group. It must differ from the group of each sink connector.",
            _not_blank,
        ),
        *_topic_keys("config.storage", "connector and task configurations", None),
        *_topic_keys("offset.storage", "source offsets", 25),
        *_topic_keys("status.storage", "connector and task statuses", 5),
        _key(
            "connect.protocol",
            _STRING,
            "sessioned",
            "The group protocol: eager, compatible (incremental cooperative rebalances), or sessioned (also signs "
            "internal requests).",
            _one_of("eager", "compatible", "sessioned"),
        ),
        _key(
            "scheduled.rebalance.max.delay.ms",
            _INT,
            300_000,
            "How long the connectors and tasks of a worker that has left stay unassigned, in ms, even if the worker "
            "returns earlier. The returned worker then continues them. Those of the leader are reassigned at once.",
            _not_negative,
        ),
        _key(
            "session.timeout.ms",
            _INT,
            10_000,
            "Time without a heartbeat after which a worker is removed, in ms.",
            _positive,
        ),
        _key(
            "heartbeat.interval.ms",
            _INT,
            3_000,
            "Interval between heartbeats to the group coordinator, in ms.",
            _positive,
        ),
        _key(
            "rebalance.timeout.ms", _INT, 60_000, "Time within which workers must join a rebalance, in ms.", _positive
        ),
        _key(
            "worker.sync.timeout.ms", _INT, 3_000, "Timeout for reading the config topic to its end, in ms.", _positive
        ),
        _key("worker.unsync.backoff.ms", _INT, 300_000, "Accepted but ignored: it applies to Kafka's eager workers."),
        _key(
            "exactly.once.source.support",
            _STRING,
            "disabled",
            "Exactly-once source connectors: only disabled is supported.",
            _only_disabled,
        ),
        _key(
            "inter.worker.key.generation.algorithm",
            _STRING,
            "HmacSHA256",
            "Algorithm of generated session keys.",
            _algorithm,
        ),
        _key("inter.worker.key.size", _INT, None, "Size of generated session keys in bits; the default is 256."),
        _key(
            "inter.worker.key.ttl.ms",
            _INT,
            3_600_000,
            "Time after which the leader creates a new key, in ms.",
            _positive,
        ),
        _key("inter.worker.signature.algorithm", _STRING, "HmacSHA256", "Algorithm of request signatures.", _algorithm),
        _key(
            "inter.worker.verification.algorithms",
            _LIST,
            ["HmacSHA256"],
            "Permitted algorithms of request signatures; they must contain inter.worker.signature.algorithm.",
            _algorithm,
        ),
        *_COMMON,
    ]
)
