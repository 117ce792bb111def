"""Tests of DescribeLogDirs."""

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


def test_describe_log_dirs_reports_offline_directory(tmp_path: Path) -> None:
    online, failed = (LogDirectory(DiskStorage(), str(tmp_path / name)) for name in ("online", "failed"))
    failed.offline_reason = "cannot append: Read-only file system"
    log = SimpleNamespace(directory=f"{failed.path}/t-0", size_bytes=7)
    context: Any = SimpleNamespace(
        config=SimpleNamespace(log_dirs=(online.path, failed.path)),
        logs=SimpleNamespace(directories=[online, failed]),
        partitions=[SimpleNamespace(topic="t", index=0, log=log)],
    )
    response = asyncio.run(describe_log_dirs.handle(context, DescribeLogDirsRequest(topics=None), 4))
    assert [(result.log_dir, result.error_code) for result in response.results] == [
        (online.path, ErrorCode.NONE),
        (failed.path, ErrorCode.KAFKA_STORAGE_ERROR),
    ]
    assert [topic.partitions[0].partition_size for topic in response.results[1].topics] == [7]
