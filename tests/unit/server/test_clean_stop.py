"""A stop says that everything is on disk when everything is."""

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


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_directory_is_marked_after_the_metadata_log_in_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """Else a power failure between the two leaves an end of it torn that the next start trusts."""
    done: list[str] = []
    close_log, close_directory = MetadataLog.close, LogDirectory.close

    def close_metadata(log: MetadataLog) -> None:
        close_log(log)
        if not is_whole:
            log.log.offline_reason = "it cannot be synced"
        done.append("metadata log")

    def close(directory: LogDirectory, *, clean: bool, broker_epoch: int = -1) -> None:
        done.append(f"{Path(directory.path).name} {'clean' if clean else 'not clean'}")
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
    how = "clean" if is_whole else "not clean"
    assert done == ["metadata log", f"a {how}", f"b {how}"]
