from __future__ import annotations

import pytest

from headrace_broker.coordinator.placement import coordinator_partition, java_hash


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("☃", 0x2603),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash_equals_the_hash_code_of_a_java_string(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_coordinator_partition_is_not_negative_for_a_group_id_with_a_negative_hash_code() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0
    assert coordinator_partition("hello", 50) == 22
    assert {coordinator_partition(f"group-{n}", 50) for n in range(2000)} == set(range(50))
