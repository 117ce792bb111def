"""Which partitions of __consumer_offsets a broker coordinates the groups of, as their leaders change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

from headrace_broker.protocol.topic_names import GROUP_METADATA_TOPIC
from headrace_broker.server.broker import Broker

US, ANOTHER = 1, 2
TOPIC: Any = SimpleNamespace(name=GROUP_METADATA_TOPIC)


class PlayedGroups:
    """Loading partition 0 takes until `may_go_on`."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.may_go_on = asyncio.Event()

    async def load(self, index: int) -> None:
        self.done.append(f"load {index}")
        if index == 0:
            await self.may_go_on.wait()

    def unload(self, index: int) -> None:
        self.done.append(f"unload {index}")


def led_by(leader: int, epoch: int) -> Any:
    return SimpleNamespace(leader=leader, leader_epoch=epoch)


def played(scene: Callable[[Any, dict[int, Any], PlayedGroups], Coroutine[Any, Any, None]]) -> None:
    """A broker that led partition 7 in epoch 5, and is in the middle of loading partition 0."""

    async def play() -> None:
        held = {0: led_by(US, 1), 7: led_by(US, 5)}
        broker: Any = object.__new__(Broker)
        broker.node_id, broker.groups, broker._tasks = US, PlayedGroups(), set()
        broker._loop, broker._logs_to_make = asyncio.get_running_loop(), {}
        broker._groups_led = {7: 5}
        broker.partitions = SimpleNamespace(
            by_name={GROUP_METADATA_TOPIC: held}, get=lambda topic, index: held.get(index), follow=lambda *wanted: []
        )
        await scene(broker, held, broker.groups)
        broker.groups.may_go_on.set()
        await asyncio.gather(*broker._tasks)

    asyncio.run(play())


def test_what_others_lead_by_now_is_left_at_once_however_long_loading_takes() -> None:
    """Members would be told that all is well, by who does not coordinate them any more."""

    async def scene(broker: Any, held: dict[int, Any], groups: PlayedGroups) -> None:
        held[7] = led_by(ANOTHER, 6)
        broker._follow_partitions(TOPIC, [0, 7])
        assert groups.done == ["unload 7"]
        await asyncio.sleep(0)
        assert groups.done == ["unload 7", "load 0"]

    played(scene)


def test_what_came_back_in_a_later_epoch_is_loaded_anew() -> None:
    """What was known of it may lack what another coordinator wrote."""

    async def scene(broker: Any, held: dict[int, Any], groups: PlayedGroups) -> None:
        held[7] = led_by(US, 7)
        broker._follow_partitions(TOPIC, [0, 7])
        assert groups.done == ["unload 7"]
        groups.may_go_on.set()
        await asyncio.gather(*broker._tasks)
        assert groups.done == ["unload 7", "load 0", "load 7"]

    played(scene)


def test_what_went_while_others_were_loaded_is_not_loaded() -> None:
    async def scene(broker: Any, held: dict[int, Any], groups: PlayedGroups) -> None:
        held[8] = led_by(US, 3)
        broker._follow_partitions(TOPIC, [0, 8])
        await asyncio.sleep(0)
        del held[8]
        groups.may_go_on.set()
        await asyncio.gather(*broker._tasks)
        assert groups.done == ["load 0"]

    played(scene)
