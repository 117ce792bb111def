"""A start that is given up leaves nothing behind that goes on."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from headrace_broker.protocol.uuid_text import encode_uuid
from headrace_broker.server.broker import Broker
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.node import Node
from support.ports import free_ports


@pytest.mark.parametrize("waits_for", ["the quorum", "its logs"])
def test_a_start_that_is_given_up_ends_its_part_in_the_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    """What would be persisted when the process ends, after its directories were given back, fails in the log."""

    async def work() -> None:
        waiting, (port, other) = asyncio.Event(), free_ports(2)

        async def load(broker: Broker) -> None:
            waiting.set()
            await asyncio.Future()

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
        await (waiting.wait() if waits_for == "its logs" else asyncio.sleep(0.1))
        assert not starting.done()
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        await asyncio.sleep(0.01)  # a task that was cancelled has its turn
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert "Quorum" not in repr(
            [handle for handle in asyncio.get_running_loop()._scheduled if not handle.cancelled()]
        )  # type: ignore[attr-defined]

    asyncio.run(work())
