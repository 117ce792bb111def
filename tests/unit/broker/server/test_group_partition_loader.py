"""Tests of loading and unloading coordinator partitions when the leaders of `__consumer_offsets` change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.metadata.image import PartitionImage, TopicImage
from headrace_broker.protocol.topic_names import GROUP_METADATA_TOPIC
from headrace_broker.server.group_partition_loader import GroupPartitionLoader
from headrace_broker.server.replicas.partitions import PartitionTable
from support.images import TOPIC_ID, partition_image

THIS_BROKER, OTHER_BROKER = 1, 2


class FakeGroups:
    """A group coordinator that records its calls. Loading partition 0 blocks until `may_load_0` is set."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.may_load_0 = asyncio.Event()

    async def load(self, partition: int) -> None:
        self.calls.append(f"load {partition}")
        if partition == 0:
            await self.may_load_0.wait()

    def unload(self, partition: int) -> None:
        self.calls.append(f"unload {partition}")


def led_by(leader: int, epoch: int) -> PartitionImage:
    return replace(partition_image("12", "12", leader), leader_epoch=epoch)


class LoaderFixture:
    """A loader that has loaded partition 7. This broker leads only partition 7, in epoch 5."""

    def __init__(self) -> None:
        self.groups = FakeGroups()
        self.tasks: list[asyncio.Task[None]] = []
        self.partitions = PartitionTable(THIS_BROKER, self._open_log, lambda partition, image, is_new_epoch: None)
        self.loader = GroupPartitionLoader(THIS_BROKER, self.partitions, self.groups, self._start_task)
        self.storage = MemoryStorage()
        self.images = {index: led_by(OTHER_BROKER, 0) for index in range(9)}
        self.held = {0, 7}

    def _open_log(self, topic: TopicImage, index: int) -> PartitionLog:
        return PartitionLog.open(self.storage, f"data/{topic.name}-{index}", topic.name, index, LogConfig(), 0)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def start(self) -> None:
        self.change({7: led_by(THIS_BROKER, 5)})
        await self.finish_loading()
        assert self.groups.calls == ["load 7"]
        self.groups.calls.clear()

    def topic(self) -> TopicImage:
        return TopicImage(GROUP_METADATA_TOPIC, TOPIC_ID, tuple(self.images[index] for index in sorted(self.images)))

    def change(self, images: dict[int, PartitionImage]) -> None:
        """Apply the new partition images and notify the loader, as the broker does."""
        self.images |= images
        topic = self.topic()
        for index in self.partitions.update(topic, sorted(self.held | images.keys())):
            self.partitions.open(topic, index)
        self.loader.on_leaders_change()

    async def finish_loading(self) -> None:
        self.groups.may_load_0.set()
        await asyncio.gather(*self.tasks)


def run(scenario: Callable[[LoaderFixture], Coroutine[Any, Any, None]]) -> None:
    async def work() -> None:
        fixture = LoaderFixture()
        await fixture.start()
        fixture.groups.may_load_0.clear()
        await scenario(fixture)
        await fixture.finish_loading()

    asyncio.run(work())


def test_partition_that_moves_to_another_leader_is_unloaded_while_a_different_partition_is_loading() -> None:
    """A broker that is no longer the coordinator must not send successful responses to members."""

    async def scenario(fixture: LoaderFixture) -> None:
        fixture.change({0: led_by(THIS_BROKER, 1), 7: led_by(OTHER_BROKER, 6)})
        assert fixture.groups.calls == ["unload 7"]
        await asyncio.sleep(0)
        assert fixture.groups.calls == ["unload 7", "load 0"]

    run(scenario)


def test_partition_is_loaded_again_when_this_broker_leads_it_in_a_later_epoch() -> None:
    """Another coordinator may have written to the partition in the meantime."""

    async def scenario(fixture: LoaderFixture) -> None:
        fixture.change({0: led_by(THIS_BROKER, 1), 7: led_by(THIS_BROKER, 7)})
        assert fixture.groups.calls == ["unload 7"]
        await fixture.finish_loading()
        assert fixture.groups.calls == ["unload 7", "load 0", "load 7"]

    run(scenario)


def test_partition_that_is_removed_while_another_partition_is_loading_is_not_loaded() -> None:
    async def scenario(fixture: LoaderFixture) -> None:
        fixture.change({0: led_by(THIS_BROKER, 1), 8: led_by(THIS_BROKER, 3)})
        await asyncio.sleep(0)
        fixture.images[8] = partition_image("23", "23", OTHER_BROKER)
        assert [partition.index for partition in fixture.partitions.remove_reassigned(fixture.topic(), [8])] == [8]
        await fixture.finish_loading()
        assert fixture.groups.calls == ["load 0"]

    run(scenario)
