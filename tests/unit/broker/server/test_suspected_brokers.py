"""Tests of SuspectedBrokers: brokers whose connection was closed, and brokers that were recently fenced."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.server.liveness.suspected_brokers import SuspectedBrokers
from support.virtual_time import run_in_virtual_time

LIVE = BrokerImage(broker_id=1, epoch=7, incarnation_id=bytes(16), endpoints=(), fenced=False)
FENCED = replace(LIVE, fenced=True)
RESTARTED = replace(LIVE, epoch=9)


def image(*brokers: BrokerImage) -> MetadataImage:
    return replace(MetadataImage(), brokers={broker.broker_id: broker for broker in brokers})


def test_metadata_response_waits_until_the_suspected_broker_is_fenced() -> None:
    async def check() -> None:
        suspected = SuspectedBrokers()
        suspected.on_image_change(image(LIVE))
        suspected.suspect(1, image(LIVE))
        assert suspected.has_suspects({1, 2})
        assert not suspected.has_suspects({2})
        waiting = asyncio.ensure_future(suspected.wait_until_resolved({1}))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        suspected.on_image_change(image(FENCED))
        await waiting
        assert asyncio.get_running_loop().time() == 0.05

    run_in_virtual_time(check())


def test_metadata_response_waits_until_the_suspected_broker_responds() -> None:
    async def check() -> None:
        suspected = SuspectedBrokers()
        suspected.suspect(1, image(LIVE))
        waiting = asyncio.ensure_future(suspected.wait_until_resolved({1}))
        await asyncio.sleep(0)
        suspected.clear(1)
        await waiting
        assert asyncio.get_running_loop().time() == 0

    run_in_virtual_time(check())


def test_metadata_response_waits_at_most_half_a_second_for_a_suspected_broker() -> None:
    async def check() -> None:
        suspected = SuspectedBrokers()
        suspected.suspect(1, image(LIVE))
        await suspected.wait_until_resolved({1})
        assert 0 < asyncio.get_running_loop().time() < 0.5
        assert not suspected.has_suspects({1})

    run_in_virtual_time(check())


def test_fenced_and_unknown_brokers_are_not_suspected() -> None:
    async def check() -> None:
        suspected = SuspectedBrokers()
        suspected.suspect(1, image(FENCED))
        suspected.suspect(2, image())
        assert not suspected.has_suspects({1, 2})

    run_in_virtual_time(check())


def test_metadata_responses_list_a_fenced_broker_for_ten_seconds_after_it_is_fenced() -> None:
    async def check() -> None:
        suspected = SuspectedBrokers()
        suspected.on_image_change(image(LIVE))
        assert suspected.recently_fenced() == []
        suspected.on_image_change(image(FENCED))
        assert suspected.recently_fenced() == [1]
        suspected.on_image_change(image(RESTARTED))
        assert suspected.recently_fenced() == []
        suspected.on_image_change(image(FENCED))
        await asyncio.sleep(11)
        assert suspected.recently_fenced() == []

    run_in_virtual_time(check())
