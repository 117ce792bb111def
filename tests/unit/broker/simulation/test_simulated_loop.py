"""Tests of SimulatedLoop, the simulated event loop: the order of callbacks, the clocks, and crashes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace_broker.simulation.loop import Clock, SimulatedLoop, SimulatedNode


def make_loop(seed: int = 0) -> SimulatedLoop:
    return SimulatedLoop(seed)  # type: ignore[abstract]


def test_callbacks_of_a_node_run_in_order_and_the_seed_determines_the_interleaving_of_nodes() -> None:
    def order(seed: int) -> list[str]:
        loop, ran = make_loop(seed), []
        nodes = [SimulatedNode(name) for name in "ab"]

        async def main() -> None:
            for number in range(5):
                for node in nodes:
                    loop.run_in_node(node, loop.call_soon, ran.append, f"{node.name}{number}")
            await asyncio.sleep(1)

        loop.run(main())
        return ran

    orders = [order(seed) for seed in range(6)]
    assert orders == [order(seed) for seed in range(6)]
    assert len({tuple(item) for item in orders}) > 1
    for item in orders:
        assert [name for name in item if name[0] == "a"] == ["a0", "a1", "a2", "a3", "a4"]


def test_time_advances_only_when_no_callback_is_ready() -> None:
    loop = make_loop()

    async def main() -> tuple[float, float]:
        await asyncio.sleep(3600)
        try:
            async with asyncio.timeout(5):
                await loop.create_future()
        except TimeoutError:
            return loop.time(), loop.now_us / 1e6
        raise AssertionError

    monotonic, simulated = loop.run(main())
    assert 3605 <= monotonic == simulated < 3605.1


def test_each_node_has_its_own_clock() -> None:
    loop = make_loop()
    fast = SimulatedNode("fast", Clock(rate=2.0, wall_ahead_us=5_000_000))
    seen: dict[str, Any] = {}

    async def sleeps() -> None:
        begin = loop.time()
        await asyncio.sleep(10)
        seen["own"] = loop.time() - begin
        seen["wall"] = loop.wall_ms()

    async def main() -> None:
        begin_us = loop.now_us
        await loop.run_in_node(fast, lambda: loop.create_task(sleeps()))
        seen["simulated"] = (loop.now_us - begin_us) / 1e6

    loop.run(main())
    assert seen["own"] == pytest.approx(10, abs=0.01)
    assert seen["simulated"] == pytest.approx(5, abs=0.01)
    assert seen["wall"] == pytest.approx(1_700_000_000_000 + 10_000 + 5_000, abs=10)


def test_crashed_node_runs_no_callbacks_and_no_finally_blocks() -> None:
    loop, ran = make_loop(), []
    node = SimulatedNode("n")

    async def works() -> None:
        try:
            await asyncio.sleep(1)
            ran.append("work")
        finally:
            ran.append("finally")

    async def main() -> None:
        loop.run_in_node(node, lambda: loop.create_task(works()))
        loop.run_in_node(node, loop.call_later, 0.5, ran.append, "timer")
        await asyncio.sleep(0.1)
        loop.crash(node)
        await asyncio.sleep(5)
        assert ran == []

    loop.run(main())
    loop.close()


def test_callbacks_of_a_paused_node_run_after_it_is_resumed() -> None:
    loop, ran = make_loop(), []
    node = SimulatedNode("n")

    async def main() -> None:
        loop.run_in_node(node, loop.call_later, 0.5, ran.append, "timer")
        loop.pause(node)
        await asyncio.sleep(5)
        assert ran == []
        loop.resume(node)
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert ran == ["timer"]

    loop.run(main())


def test_executor_work_takes_simulated_time_and_is_dropped_when_its_node_crashes() -> None:
    loop, ran = make_loop(), []
    node = SimulatedNode("n")
    node.file_work_us = (200_000, 200_000)

    async def main() -> None:
        begin_us = loop.now_us

        async def works() -> None:
            await loop.run_in_executor(None, ran.append, "work")

        await loop.run_in_node(node, lambda: loop.create_task(works()))
        assert loop.now_us - begin_us >= 200_000
        loop.run_in_node(node, lambda: loop.create_task(works()))
        await asyncio.sleep(0.1)
        loop.crash(node)
        await asyncio.sleep(1)
        assert ran == ["work"]

    loop.run(main())
    loop.close()


def test_exception_in_a_callback_is_recorded_with_the_node_of_the_callback() -> None:
    loop = make_loop()
    node = SimulatedNode("n")

    async def main() -> None:
        loop.run_in_node(node, loop.call_soon, lambda: 1 // 0)
        await asyncio.sleep(1)

    loop.run(main())
    assert [failure["node"] for failure in loop.failures] == ["n"]


def test_simulation_raises_deadlock_error_if_no_callback_or_timer_is_left() -> None:
    loop = make_loop()

    async def main() -> None:
        await loop.create_future()

    with pytest.raises(RuntimeError, match="deadlocked"):
        loop.run(main())
    loop.close()
