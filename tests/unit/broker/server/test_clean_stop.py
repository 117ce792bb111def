"""Tests that the clean shutdown marker is written only after all data is synced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace_broker.log.directory import LogDirectory
from headrace_broker.protocol.uuid_text import encode_uuid
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.kraft.metadata_log import MetadataLog
from headrace_broker.server.node import Node
from support.ports import free_port


@pytest.mark.parametrize("is_synced", [True, False])
def test_clean_shutdown_marker_is_written_after_the_metadata_log_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_synced: bool
) -> None:
    """If the marker were written first, a power failure could leave an incomplete log that the next start trusts."""
    calls: list[str] = []
    close_log, close_directory = MetadataLog.close, LogDirectory.close

    def close_metadata(log: MetadataLog) -> None:
        close_log(log)
        if not is_synced:
            log.log.offline_reason = "sync failed"
        calls.append("metadata log")

    def close(directory: LogDirectory, *, clean: bool, broker_epoch: int = -1) -> None:
        calls.append(f"{Path(directory.path).name} {'clean' if clean else 'not clean'}")
        close_directory(directory, clean=clean, broker_epoch=broker_epoch)

    async def work() -> None:
        port = free_port()
        properties = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{port}",
            "log.dirs": f"{tmp_path}/a,{tmp_path}/b",
        }
        node = await Node.start(BrokerConfig.from_properties(properties), cluster_id=encode_uuid(bytes(16)))
        monkeypatch.setattr(MetadataLog, "close", close_metadata)
        monkeypatch.setattr(LogDirectory, "close", close)
        await node.stop()

    asyncio.run(work())
    marker = "clean" if is_synced else "not clean"
    assert calls == ["metadata log", f"a {marker}", f"b {marker}"]
