"""DescribeLogDirs (35): describe a broker's log directories and the sizes of the replicas in them.

A null topic list requests all topics. Version 2 is flexible, version 3 adds a top-level error, version 4 adds the sizes
of the volumes (KIP-827), and version 5 adds `is_cordoned`.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, boolean, int16, int32, int64, string


class DescribeLogDirsPartition(Message):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Message):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Message):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64("4+", default=-1, ignorable=True)
    usable_bytes: int = int64("4+", default=-1, ignorable=True)
    is_cordoned: bool = boolean("5+", ignorable=True)


class DescribeLogDirsResponse(Response, api_key=35, versions="1-5", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16("3+", ignorable=True)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)


class DescribableLogDirTopic(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class DescribeLogDirsRequest(Request[DescribeLogDirsResponse], api_key=35, versions="1-5", flexible="2+"):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable="0+")
