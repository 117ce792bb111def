"""DescribeLogDirs: what an operator is told of directories."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import DiskStorage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace_broker.server.handlers import describe_log_dirs


def test_a_directory_that_is_offline_says_so(tmp_path: Path) -> None:
    sound, failed = (LogDirectory(DiskStorage(), str(tmp_path / name)) for name in ("sound", "failed"))
    failed.offline_reason = "cannot append: Read-only file system"
    log = SimpleNamespace(directory=f"{failed.path}/t-0", size_bytes=7)
    context: Any = SimpleNamespace(
        config=SimpleNamespace(log_dirs=(sound.path, failed.path)),
        logs=SimpleNamespace(directories=[sound, failed]),
        partitions=[SimpleNamespace(topic="t", index=0, log=log)],
    )
    answer = asyncio.run(describe_log_dirs.handle(context, DescribeLogDirsRequest(topics=None), 4))
    assert [(result.log_dir, result.error_code) for result in answer.results] == [
        (sound.path, ErrorCode.NONE),
        (failed.path, ErrorCode.KAFKA_STORAGE_ERROR),
    ]
    assert [topic.partitions[0].partition_size for topic in answer.results[1].topics] == [7]
