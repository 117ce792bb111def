"""Defines the topic configurations of Kafka 4.3. The module `log.config` validates and resolves their values."""

from __future__ import annotations

from headrace_broker.log.config_keys import DAY_MS, HOUR_MS, LONG_MAX, WEEK_MS, Check, ConfigKey, ConfigType


def _at_least(minimum: int) -> Check:
    return lambda value: None if value >= minimum else f"Value must be at least {minimum}"


def _between(minimum: float, maximum: float) -> Check:
    def check(value: float) -> str | None:
        if value < minimum:
            return f"Value must be at least {minimum}"
        return None if value <= maximum else f"Value must be no more than {maximum}"

    return check


def _one_of(*names: str) -> Check:
    return lambda value: None if value in names else f"String must be one of: {', '.join(names)}"


def _cleanup_policy(value: list[str]) -> str | None:
    unknown = [word for word in value if word not in ("compact", "delete")]
    if unknown or len(set(value)) != len(value):
        return "List must contain compact, delete, or both, each at most once"
    return None


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or 1 <= value <= 9 else "Value must be between 1 and 9 or equal to -1"


def _throttled_replicas(value: list[str]) -> str | None:
    if value == ["*"] or all(len(word.split(":")) == 2 and word.replace(":", "").isdigit() for word in value):
        return None
    return 'Value must be "*" or a list of partition:broker pairs'


_B, _S, _I, _L, _D, _LIST = (
    ConfigType.BOOLEAN,
    ConfigType.STRING,
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.DOUBLE,
    ConfigType.LIST,
)


def _names(*names: str) -> tuple[tuple[str, int], ...]:
    factors = {"hours": HOUR_MS, "minutes": 60_000}
    return tuple((name, factors.get(name.rpartition(".")[2], 1)) for name in names)


TOPIC_CONFIGS: dict[str, ConfigKey] = {
    key.name: key
    for key in (
        ConfigKey(
            "cleanup.policy",
            _LIST,
            ["delete"],
            "Whether old segments are deleted by age and size, compacted to the newest record of each key, or both.",
            _cleanup_policy,
            _names("log.cleanup.policy"),
        ),
        ConfigKey(
            "compression.gzip.level",
            _I,
            -1,
            "Compression level for compression.type=gzip.",
            _gzip_level,
            _names("compression.gzip.level"),
        ),
        ConfigKey(
            "compression.lz4.level",
            _I,
            9,
            "Compression level for compression.type=lz4.",
            _between(1, 17),
            _names("compression.lz4.level"),
        ),
        ConfigKey(
            "compression.type",
            _S,
            "producer",
            "Compression codec of stored batches; producer keeps the producer's codec, uncompressed stores them "
            "uncompressed.",
            _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
            _names("compression.type"),
        ),
        ConfigKey(
            "compression.zstd.level",
            _I,
            3,
            "Compression level for compression.type=zstd.",
            _between(-131072, 22),
            _names("compression.zstd.level"),
        ),
        ConfigKey(
            "delete.retention.ms",
            _L,
            DAY_MS,
            "How long tombstones of a compacted topic stay readable.",
            _at_least(0),
            _names("log.cleaner.delete.retention.ms"),
        ),
        ConfigKey(
            "file.delete.delay.ms",
            _L,
            60_000,
            "How long a deleted file stays on disk under its .deleted name.",
            _at_least(0),
            _names("log.segment.delete.delay.ms"),
        ),
        ConfigKey(
            "flush.messages",
            _L,
            LONG_MAX,
            "Number of records after which the log is fsynced; durability usually comes from replication instead.",
            _at_least(1),
            _names("log.flush.interval.messages"),
        ),
        ConfigKey(
            "flush.ms",
            _L,
            LONG_MAX,
            "Time since the last fsync after which the log is fsynced.",
            _at_least(0),
            _names("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        ),
        ConfigKey(
            "follower.replication.throttled.replicas",
            _LIST,
            [],
            "partition:broker pairs whose replication is throttled on the follower, or * for all.",
            _throttled_replicas,
        ),
        ConfigKey(
            "index.interval.bytes",
            _I,
            4096,
            "Number of bytes of records between two entries of the offset index.",
            _at_least(0),
            _names("log.index.interval.bytes"),
        ),
        ConfigKey(
            "leader.replication.throttled.replicas",
            _LIST,
            [],
            "partition:broker pairs whose replication is throttled on the leader, or * for all.",
            _throttled_replicas,
        ),
        ConfigKey(
            "local.retention.bytes",
            _L,
            -2,
            "Number of bytes that a tiered topic keeps on the broker's disk; -2 = the value of retention.bytes.",
            _at_least(-2),
            _names("log.local.retention.bytes"),
        ),
        ConfigKey(
            "local.retention.ms",
            _L,
            -2,
            "Time for which a tiered topic keeps records on the broker's disk; -2 = the value of retention.ms.",
            _at_least(-2),
            _names("log.local.retention.ms"),
        ),
        ConfigKey(
            "max.compaction.lag.ms",
            _L,
            LONG_MAX,
            "Longest time that a record of a compacted topic may wait for compaction.",
            _at_least(1),
            _names("log.cleaner.max.compaction.lag.ms"),
        ),
        ConfigKey(
            "max.message.bytes",
            _I,
            1024 * 1024 + 12,
            "Largest size of a record batch that the topic accepts, after compression.",
            _at_least(0),
            _names("message.max.bytes"),
        ),
        ConfigKey(
            "message.timestamp.after.max.ms",
            _L,
            HOUR_MS,
            "How far a record's timestamp may be ahead of the broker's clock.",
            _at_least(0),
            _names("log.message.timestamp.after.max.ms"),
        ),
        ConfigKey(
            "message.timestamp.before.max.ms",
            _L,
            LONG_MAX,
            "How far a record's timestamp may be behind the broker's clock.",
            _at_least(0),
            _names("log.message.timestamp.before.max.ms"),
        ),
        ConfigKey(
            "message.timestamp.type",
            _S,
            "CreateTime",
            "Whether the producer sets the timestamp of a record, or the broker sets it to the time of the append.",
            _one_of("CreateTime", "LogAppendTime"),
            _names("log.message.timestamp.type"),
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            _D,
            0.5,
            "Ratio of uncompacted bytes to all bytes above which a compacted log is cleaned.",
            _between(0, 1),
            _names("log.cleaner.min.cleanable.ratio"),
        ),
        ConfigKey(
            "min.compaction.lag.ms",
            _L,
            0,
            "Shortest time that a record of a compacted topic waits for compaction.",
            _at_least(0),
            _names("log.cleaner.min.compaction.lag.ms"),
        ),
        ConfigKey(
            "min.insync.replicas",
            _I,
            1,
            "Number of in-sync replicas that a produce request with acks=all requires.",
            _at_least(1),
            _names("min.insync.replicas"),
        ),
        ConfigKey(
            "preallocate",
            _B,
            False,
            "Whether the file of a new segment is preallocated on disk.",
            None,
            _names("log.preallocate"),
        ),
        ConfigKey(
            "remote.log.copy.disable",
            _B,
            False,
            "Whether uploads of a tiered topic are stopped.",
        ),
        ConfigKey(
            "remote.log.delete.on.disable",
            _B,
            False,
            "Whether tiered data is deleted when tiered storage is disabled.",
        ),
        ConfigKey(
            "remote.storage.enable",
            _B,
            False,
            "Whether the topic is tiered. headrace has no tiered storage and only accepts false.",
            lambda value: "Tiered storage is not supported" if value else None,
        ),
        ConfigKey(
            "retention.bytes",
            _L,
            -1,
            "Size of a partition above which its oldest segments are deleted; -1 = no limit.",
            None,
            _names("log.retention.bytes"),
        ),
        ConfigKey(
            "retention.ms",
            _L,
            WEEK_MS,
            "Age of a segment's newest record after which the segment is deleted; -1 = never.",
            _at_least(-1),
            _names("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        ),
        ConfigKey(
            "segment.bytes",
            _I,
            1024 * 1024 * 1024,
            "Size of one segment file. Retention and compaction process whole segments.",
            _at_least(1024 * 1024),
            _names("log.segment.bytes"),
        ),
        ConfigKey(
            "segment.index.bytes",
            _I,
            10 * 1024 * 1024,
            "Largest size of an index file; a full index rolls the segment.",
            _at_least(4),
            _names("log.index.size.max.bytes"),
        ),
        ConfigKey(
            "segment.jitter.ms",
            _L,
            0,
            "Maximum random time subtracted from segment.ms, so that partitions do not all roll at the same time.",
            _at_least(0),
            _names("log.roll.jitter.ms", "log.roll.jitter.hours"),
        ),
        ConfigKey(
            "segment.ms",
            _L,
            WEEK_MS,
            "Time after which a segment is rolled even if it is not full.",
            _at_least(1),
            _names("log.roll.ms", "log.roll.hours"),
        ),
        ConfigKey(
            "unclean.leader.election.enable",
            _B,
            False,
            "Whether an out-of-sync replica may become leader if no in-sync replica is available.",
            None,
            _names("unclean.leader.election.enable"),
        ),
    )
}
