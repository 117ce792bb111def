"""Tests that a cancelled start of a node leaves no tasks or timers running."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from headrace_broker.protocol.uuid_text import encode_uuid
from headrace_broker.server.broker import Broker
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.kraft.quorum_watch import QuorumWatch
from headrace_broker.server.node import Node
from support.ports import free_ports


@pytest.mark.parametrize("waits_for", ["the quorum", "its logs"])
def test_raft_client_of_a_node_is_closed_if_the_start_of_the_node_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    """An open Raft client (class `Quorum`) would write to the metadata log after the directories are unlocked."""

    async def work() -> None:
        waiting, (port, other) = asyncio.Event(), free_ports(2)

        async def load(broker: Broker) -> None:
            waiting.set()
            await asyncio.Future()

        async def wait_until_caught_up(watch: QuorumWatch, timeout_ms: float) -> None:
            if waits_for == "the quorum":
                waiting.set()
            await original_wait_until_caught_up(watch, timeout_ms)

        original_wait_until_caught_up = QuorumWatch.wait_until_caught_up
        monkeypatch.setattr(QuorumWatch, "wait_until_caught_up", wait_until_caught_up)
        monkeypatch.setattr(Broker, "_load_logs", load)
        alone = f"1@127.0.0.1:{port}"
        properties = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": alone if waits_for == "its logs" else f"{alone},2@127.0.0.1:{other}",
            "log.dirs": str(tmp_path),
        }
        config = BrokerConfig.from_properties(properties)
        starting = asyncio.ensure_future(Node.start(config, cluster_id=encode_uuid(bytes(16))))
        await waiting.wait()
        await asyncio.sleep(0)  # let Node.start reach the point where it waits
        assert not starting.done()
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        test_task = asyncio.current_task()
        if cancelled := asyncio.all_tasks() - {test_task}:
            await asyncio.wait(cancelled, timeout=5)  # let cancelled tasks finish
        assert asyncio.all_tasks() == {test_task}
        assert "Quorum" not in repr(
            [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]
        )  # type: ignore[attr-defined]

    asyncio.run(work())
