"""Parked operations: due when data or time comes, handed out once."""

from __future__ import annotations

from headrace_broker.server.network.parked import Parked, ParkedOperations


def fetch(name: str, keys: list[str], deadline_ms: int = 500, missing_bytes: int = 1) -> Parked:
    return Parked(name, keys, deadline_ms, missing_bytes=missing_bytes)


def names(operations: list[Parked]) -> list[str]:
    return [operation.payload for operation in operations]


def test_a_fetch_is_due_when_its_missing_bytes_have_come() -> None:
    parked = ParkedOperations()
    parked.park(fetch("f", ["a", "b"], missing_bytes=100))
    assert parked.advanced("a", 1, 60) == []
    assert names(parked.advanced("b", 1, 40)) == ["f"]
    assert parked.advanced("a", 2, 1000) == []
    assert not parked.waiting_for("a")


def test_a_produce_is_due_when_every_partition_passed_its_offset() -> None:
    parked = ParkedOperations()
    parked.park(Parked("p", ["a", "b"], 500, required_offsets={"a": 10, "b": 5}))
    assert parked.advanced("a", 10, 1) == []
    assert parked.advanced("b", 4, 1) == []
    assert parked.advanced("c", 99, 1) == []
    assert names(parked.advanced("b", 5, 1)) == ["p"]


def produce(name: str, **required_offsets: int) -> Parked:
    return Parked(name, required_offsets, 500, required_offsets=dict(required_offsets))


def test_produces_are_due_by_their_offsets_whenever_they_came() -> None:
    parked = ParkedOperations()
    for name, offset in (("second", 10), ("third", 15), ("first, sent again", 5), ("second, sent again", 10)):
        parked.park(produce(name, a=offset))
    assert names(parked.advanced("a", 9, 1)) == ["first, sent again"]
    assert names(parked.advanced("a", 14, 1)) == ["second", "second, sent again"]
    assert names(parked.advanced("a", 15, 1)) == ["third"]
    assert not parked.waiting_for("a")


def test_one_of_many_produces_is_cancelled() -> None:
    parked = ParkedOperations()
    operations = [produce(str(number), a=10, b=number) for number in range(5)]
    for operation in operations:
        parked.park(operation)
    parked.cancel(operations[2])
    assert parked.advanced("b", 4, 1) == []
    parked.cancel(operations[3])
    assert not parked.waiting_for("b")
    assert names(parked.advanced("a", 10, 1)) == ["0", "1", "4"]
    assert len(parked) == 0


def test_a_produce_stays_when_a_partition_that_it_passed_goes_away() -> None:
    parked = ParkedOperations()
    parked.park(produce("p", a=10, b=5))
    assert parked.advanced("a", 10, 1) == []
    assert parked.disturbed("a") == []
    assert names(parked.disturbed("b")) == ["p"]
    assert len(parked) == 0


class Offset(int):
    """An offset that counts how often any is compared."""

    compared = 0

    def __lt__(self, other: object) -> bool:
        Offset.compared += 1
        return int(self) < other if isinstance(other, int) else NotImplemented


def test_produces_that_are_not_due_are_not_looked_at() -> None:
    parked = ParkedOperations()
    count = 1000
    for number in range(count):
        parked.park(produce(str(number), a=Offset(number)))
    Offset.compared = 0
    assert [names(parked.advanced("a", number, 1)) for number in range(count)] == [[str(n)] for n in range(count)]
    assert Offset.compared < 15 * count  # a search by halves; each of them looked at each time would be half a million


def test_deadlines_come_in_order_and_only_once() -> None:
    parked = ParkedOperations()
    for name, deadline_ms in (("late", 300), ("early", 100), ("middle", 200)):
        parked.park(fetch(name, ["a"], deadline_ms))
    assert parked.next_deadline_ms() == 100
    assert parked.expired(99) == []
    assert names(parked.expired(200)) == ["early", "middle"]
    assert names(parked.advanced("a", 1, 1)) == ["late"]
    assert parked.expired(1000) == []
    assert parked.next_deadline_ms() is None
    assert len(parked) == 0


def test_what_is_cancelled_is_never_due() -> None:
    parked = ParkedOperations()
    operation = fetch("f", ["a"])
    parked.park(operation)
    parked.cancel(operation)
    parked.cancel(operation)
    assert parked.advanced("a", 1, 1) == []
    assert parked.expired(10_000) == []
    assert len(parked) == 0


def test_a_disturbed_partition_makes_all_who_wait_for_it_due() -> None:
    parked = ParkedOperations()
    parked.park(fetch("f", ["a", "b"]))
    parked.park(Parked("p", ["a"], 500, required_offsets={"a": 10}))
    parked.park(fetch("other", ["b"]))
    assert names(parked.disturbed("a")) == ["f", "p"]
    assert names(parked.disturbed("b")) == ["other"]


def test_finished_operations_do_not_pile_up_until_their_deadline() -> None:
    parked = ParkedOperations()
    for number in range(10_000):
        parked.park(fetch(str(number), ["a"], 1_000_000))
        parked.advanced("a", number, 1)
    assert len(parked._deadlines) < 200


def test_a_payload_is_given_once_and_not_kept() -> None:
    parked = ParkedOperations()
    done, cancelled = fetch("done", ["a"]), fetch("cancelled", ["a"])
    parked.park(cancelled)
    parked.cancel(cancelled)
    parked.park(done)
    (due,) = parked.advanced("a", 1, 1)
    assert due.take_payload() == "done"
    assert done.payload is None
    assert cancelled.payload is None
