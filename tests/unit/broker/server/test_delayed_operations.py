"""Tests of delayed operations: each completes exactly once, when data arrives or the deadline passes."""

from __future__ import annotations

import asyncio

from headrace_broker.server.network.delayed_operations import DelayedOperation, DelayedOperations
from headrace_broker.server.network.purgatory import Purgatory


def fetch(name: str, keys: list[str], deadline_ms: int = 500, missing_bytes: int = 1) -> DelayedOperation:
    return DelayedOperation(name, keys, deadline_ms, missing_bytes=missing_bytes)


def names(operations: list[DelayedOperation]) -> list[str]:
    return [operation.payload for operation in operations]


def test_delayed_fetch_operation_completes_when_the_missing_bytes_have_arrived() -> None:
    operations = DelayedOperations()
    operations.watch(fetch("f", ["a", "b"], missing_bytes=100))
    assert operations.try_complete("a", 1, 60) == []
    assert names(operations.try_complete("b", 1, 40)) == ["f"]
    assert operations.try_complete("a", 2, 1000) == []
    assert not operations.is_watched("a")


def test_delayed_produce_operation_completes_when_every_partition_reaches_its_required_offset() -> None:
    operations = DelayedOperations()
    operations.watch(DelayedOperation("p", ["a", "b"], 500, required_offsets={"a": 10, "b": 5}))
    assert operations.try_complete("a", 10, 1) == []
    assert operations.try_complete("b", 4, 1) == []
    assert operations.try_complete("c", 99, 1) == []
    assert names(operations.try_complete("b", 5, 1)) == ["p"]


def produce(name: str, **required_offsets: int) -> DelayedOperation:
    return DelayedOperation(name, required_offsets, 500, required_offsets=dict(required_offsets))


def test_delayed_produce_operations_complete_in_order_of_required_offsets() -> None:
    operations = DelayedOperations()
    for name, offset in (("second", 10), ("third", 15), ("first, retried", 5), ("second, retried", 10)):
        operations.watch(produce(name, a=offset))
    assert names(operations.try_complete("a", 9, 1)) == ["first, retried"]
    assert names(operations.try_complete("a", 14, 1)) == ["second", "second, retried"]
    assert names(operations.try_complete("a", 15, 1)) == ["third"]
    assert not operations.is_watched("a")


def test_cancelled_produce_operation_does_not_affect_other_delayed_produce_operations() -> None:
    operations = DelayedOperations()
    produces = [produce(str(number), a=10, b=number) for number in range(5)]
    for operation in produces:
        operations.watch(operation)
    operations.cancel(produces[2])
    assert operations.try_complete("b", 4, 1) == []
    operations.cancel(produces[3])
    assert not operations.is_watched("b")
    assert names(operations.try_complete("a", 10, 1)) == ["0", "1", "4"]
    assert len(operations) == 0


def test_method_force_complete_ignores_delayed_operations_that_no_longer_wait_for_the_partition() -> None:
    operations = DelayedOperations()
    operations.watch(produce("p", a=10, b=5))
    assert operations.try_complete("a", 10, 1) == []
    assert operations.force_complete("a") == []
    assert names(operations.force_complete("b")) == ["p"]
    assert len(operations) == 0


class Offset(int):
    """An offset that counts its comparisons in the class attribute `compared`."""

    compared = 0

    def __lt__(self, other: object) -> bool:
        Offset.compared += 1
        return int(self) < other if isinstance(other, int) else NotImplemented


def test_append_does_not_check_delayed_produce_operations_with_larger_required_offsets() -> None:
    operations = DelayedOperations()
    count = 1000
    for number in range(count):
        operations.watch(produce(str(number), a=Offset(number)))
    Offset.compared = 0
    assert [names(operations.try_complete("a", number, 1)) for number in range(count)] == [
        [str(n)] for n in range(count)
    ]
    assert Offset.compared < 15 * count  # a linear search would compare half a million times


def test_delayed_operations_expire_in_the_order_of_their_deadlines_and_only_once() -> None:
    operations = DelayedOperations()
    for name, deadline_ms in (("late", 300), ("early", 100), ("middle", 200)):
        operations.watch(fetch(name, ["a"], deadline_ms))
    assert operations.next_deadline_ms() == 100
    assert operations.expire(99) == []
    assert names(operations.expire(200)) == ["early", "middle"]
    assert names(operations.try_complete("a", 1, 1)) == ["late"]
    assert operations.expire(1000) == []
    assert operations.next_deadline_ms() is None
    assert len(operations) == 0


def test_cancelled_delayed_operation_never_completes() -> None:
    operations = DelayedOperations()
    operation = fetch("f", ["a"])
    operations.watch(operation)
    operations.cancel(operation)
    operations.cancel(operation)
    assert operations.try_complete("a", 1, 1) == []
    assert operations.expire(10_000) == []
    assert len(operations) == 0


def test_method_force_complete_completes_all_delayed_operations_of_the_partition() -> None:
    operations = DelayedOperations()
    operations.watch(fetch("f", ["a", "b"]))
    operations.watch(DelayedOperation("p", ["a"], 500, required_offsets={"a": 10}))
    operations.watch(fetch("other", ["b"]))
    assert names(operations.force_complete("a")) == ["f", "p"]
    assert names(operations.force_complete("b")) == ["other"]


def test_completed_delayed_operations_do_not_stay_in_memory_until_their_deadline() -> None:
    operations = DelayedOperations()
    for number in range(10_000):
        operations.watch(fetch(str(number), ["a"], 1_000_000))
        operations.try_complete("a", number, 1)
    assert len(operations._deadlines) < 200


def test_completed_or_cancelled_delayed_operation_releases_its_payload() -> None:
    operations = DelayedOperations()
    done, cancelled = fetch("done", ["a"]), fetch("cancelled", ["a"])
    operations.watch(cancelled)
    operations.cancel(cancelled)
    operations.watch(done)
    (due,) = operations.try_complete("a", 1, 1)
    assert due.detach_payload() == "done"
    assert done.payload is None
    assert cancelled.payload is None


def test_delayed_operation_whose_required_offset_is_reached_completes_exactly_once() -> None:
    async def completed_operations() -> list[str]:
        purgatory = Purgatory(asyncio.get_running_loop())
        completed: list[str] = []
        purgatory.watch(lambda: completed.append("produce"), ["t-0"], 10_000, required_offsets={"t-0": 5})
        purgatory.try_complete("t-0", 5, 100)
        assert completed == []  # `try_complete` does not complete the operation itself
        purgatory.complete_due()
        assert completed == ["produce"]
        await asyncio.sleep(0)
        purgatory.close()
        return completed

    assert asyncio.run(completed_operations()) == ["produce"]
