"""Tests of the Connect group protocol: exact bytes, missing trailing fields, and malformed messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.herder.assignment import EMPTY, Assignment
from headrace.herder.group_protocol import (
    CONFIG_MISMATCH,
    GroupAssignment,
    GroupProtocolError,
    Version,
    WorkerMetadata,
    decode_assignment,
    decode_metadata,
    encode_assignment,
    encode_metadata,
    protocols,
)

URL = "http://h:8083/"
URL_HEX = "000e 687474703a2f2f683a383038332f"  # INT16 length 14, then UTF-8
OFFSET_5_HEX = "0000000000000005"
A_HEX, B_HEX = "0001 61", "0001 62"  # the names "a" and "b"

HELD = GroupAssignment(
    leader="m-1",
    leader_url=URL,
    config_offset=5,
    assigned=Assignment(frozenset({"a"}), frozenset({("a", 0), ("a", 1), ("b", 2)})),
    revoked=Assignment(frozenset({"b"})),
    delay_ms=300_000,
)
ITEMS_HEX = (
    f"00000002 {A_HEX} 00000003 ffffffff 00000000 00000001 {B_HEX} 00000001 00000002"  # a: connector, 0, 1; b: 2
)
REVOKED_HEX = f"00000001 {B_HEX} 00000001 ffffffff"


def assignment_hex(version: str, tail: str, *, error: str = "0000") -> str:
    return f"{version} {error} 0003 6d2d31 {URL_HEX} {OFFSET_5_HEX} {tail}"


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (Version.EAGER, f"0000 {URL_HEX} {OFFSET_5_HEX}"),
        (Version.COMPATIBLE, f"0001 {URL_HEX} {OFFSET_5_HEX} ffffffff"),
        (Version.SESSIONED, f"0002 {URL_HEX} {OFFSET_5_HEX} ffffffff"),
    ],
)
def test_encoded_metadata_of_a_worker_without_tasks_equals_the_bytes_of_kafka_connect(
    version: Version, expected: str
) -> None:
    data = encode_metadata(WorkerMetadata(URL, 5), version)
    assert data == bytes.fromhex(expected)
    assert decode_metadata(data) == WorkerMetadata(URL, 5)


def test_metadata_of_a_worker_that_has_read_no_configs_contains_config_offset_minus_1() -> None:
    data = encode_metadata(WorkerMetadata("", -1), Version.EAGER)
    assert data == bytes.fromhex("0000 0000 ffffffffffffffff")
    assert decode_metadata(data) == WorkerMetadata("", -1)


@pytest.mark.parametrize("version", [Version.COMPATIBLE, Version.SESSIONED])
def test_worker_metadata_contains_the_current_assignment_encoded_in_the_same_protocol_version(version: Version) -> None:
    held = bytes.fromhex(assignment_hex(f"{version:04x}", f"{ITEMS_HEX} {REVOKED_HEX} 000493e0"))
    assert len(held) == 0x56
    data = encode_metadata(WorkerMetadata(URL, 5, HELD), version)
    assert data == bytes.fromhex(f"{version:04x} {URL_HEX} {OFFSET_5_HEX} 00000056") + held
    assert decode_metadata(data) == WorkerMetadata(URL, 5, HELD)


def test_worker_metadata_of_the_eager_protocol_omits_the_current_assignment_of_the_worker() -> None:
    assert encode_metadata(WorkerMetadata(URL, 5, HELD), Version.EAGER) == bytes.fromhex(
        f"0000 {URL_HEX} {OFFSET_5_HEX}"
    )


@pytest.mark.parametrize(
    ("version", "tail"),
    [
        (Version.EAGER, ITEMS_HEX),
        (Version.COMPATIBLE, f"{ITEMS_HEX} {REVOKED_HEX} 000493e0"),
        (Version.SESSIONED, f"{ITEMS_HEX} {REVOKED_HEX} 000493e0"),
    ],
)
def test_encoded_assignment_equals_the_bytes_of_kafka_connect(version: Version, tail: str) -> None:
    assert encode_assignment(HELD, version) == bytes.fromhex(assignment_hex(f"{version:04x}", tail))


def test_encoded_assignment_with_an_error_equals_the_bytes_of_kafka_connect() -> None:
    failed = GroupAssignment("m-1", URL, 5, error=CONFIG_MISMATCH)
    data = bytes.fromhex(assignment_hex("0002", "00000000 00000000 00000000", error="0001"))
    assert encode_assignment(failed, Version.SESSIONED) == data
    assert decode_assignment(data) == failed


def test_connector_name_in_an_assignment_is_encoded_in_utf_8_after_its_length_in_bytes() -> None:
    data = encode_assignment(GroupAssignment("", "", 0, Assignment(frozenset({"ä"}))), Version.EAGER)
    assert data == bytes.fromhex("0000 0000 0000 0000 0000000000000000 00000001 0002 c3a4 00000001 ffffffff")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("", (EMPTY, EMPTY, 0)),
        (ITEMS_HEX, (HELD.assigned, EMPTY, 0)),
        (f"{ITEMS_HEX} {REVOKED_HEX}", (HELD.assigned, HELD.revoked, 0)),
        ("ffffffff ffffffff 0000000a", (EMPTY, EMPTY, 10)),
    ],
    ids=["no items", "no revocations", "no delay", "null arrays"],
)
def test_missing_trailing_fields_and_null_arrays_of_an_assignment_are_decoded_as_defaults(
    version: int, tail: str, expected: tuple[Assignment, Assignment, int]
) -> None:
    found = decode_assignment(bytes.fromhex(assignment_hex(f"{version:04x}", tail)))
    assert (found.assigned, found.revoked, found.delay_ms) == expected
    assert (found.leader, found.leader_url, found.config_offset, found.error) == ("m-1", URL, 5, 0)


def test_worker_metadata_without_a_current_assignment_is_decoded() -> None:
    assert decode_metadata(bytes.fromhex(f"0001 {URL_HEX} {OFFSET_5_HEX}")) == WorkerMetadata(URL, 5)


def test_several_entries_of_one_connector_in_an_assignment_are_combined() -> None:
    items = f"00000002 {A_HEX} 00000001 ffffffff {A_HEX} 00000001 00000000"
    assert decode_assignment(bytes.fromhex(assignment_hex("0001", items))).assigned == Assignment(
        frozenset({"a"}), frozenset({("a", 0)})
    )


def test_group_protocol_message_of_a_later_version_is_decoded_like_version_2() -> None:
    """Kafka Connect assumes that later versions are compatible."""
    assert decode_metadata(bytes.fromhex(f"0003 {URL_HEX} {OFFSET_5_HEX} ffffffff 01")) == WorkerMetadata(URL, 5)


@pytest.mark.parametrize(
    ("hex_text", "message"),
    [
        ("", "ends at byte 0"),
        ("00", "ends at byte 1"),
        ("ffff 0000 0000000000000000", "version -1 is negative"),
        ("0000 0005 6162", "ends at byte 6"),
        ("0000 0001 ff 0000000000000000", "not UTF-8"),
        (f"0000 {URL_HEX}", "ends at byte 18"),
        (f"0001 {URL_HEX} {OFFSET_5_HEX} 00000010 0001", "ends at byte 32"),
        (f"0001 {URL_HEX} {OFFSET_5_HEX} 00000000", "ends at byte 0"),
    ],
)
def test_malformed_worker_metadata_is_rejected(hex_text: str, message: str) -> None:
    with pytest.raises(GroupProtocolError, match=message):
        decode_metadata(bytes.fromhex(hex_text))


@pytest.mark.parametrize("version", list(Version))
def test_truncated_assignment_is_rejected_unless_it_ends_between_optional_fields(version: Version) -> None:
    data = encode_assignment(HELD, version)
    required = len(bytes.fromhex(assignment_hex("0000", "")))
    items, revoked = len(bytes.fromhex(ITEMS_HEX)), len(bytes.fromhex(REVOKED_HEX))
    complete = {required, required + items, required + items + revoked}
    for size in range(len(data)):
        if size in complete:
            decode_assignment(data[:size])
        else:
            with pytest.raises(GroupProtocolError):
                decode_assignment(data[:size])


def test_assignment_with_an_item_count_that_exceeds_the_message_size_is_rejected() -> None:
    with pytest.raises(GroupProtocolError):
        decode_assignment(bytes.fromhex(assignment_hex("0001", "7fffffff")))


@pytest.mark.parametrize(
    ("highest", "names"),
    [
        ("eager", ["default"]),
        ("compatible", ["compatible", "default"]),
        ("SESSIONED", ["sessioned", "compatible", "default"]),
    ],
)
def test_worker_offers_all_supported_group_protocols_from_the_newest_to_the_oldest(
    highest: str, names: list[str]
) -> None:
    offered = protocols(WorkerMetadata(URL, 5, HELD), Version.of_config(highest))
    assert [name for name, _ in offered] == names
    for name, data in offered:
        version = Version.of_protocol(name)
        assert data == encode_metadata(WorkerMetadata(URL, 5, HELD), version)


def test_unknown_group_protocol_name_is_rejected() -> None:
    with pytest.raises(GroupProtocolError, match="unknown protocol 'range'"):
        Version.of_protocol("range")


NAMES = st.text(max_size=8)
ASSIGNMENTS = st.builds(
    Assignment,
    st.frozensets(NAMES, max_size=4),
    st.frozensets(st.tuples(NAMES, st.integers(0, 2**31 - 1)), max_size=6),
)
GROUP_ASSIGNMENTS = st.builds(
    GroupAssignment,
    leader=NAMES,
    leader_url=NAMES,
    config_offset=st.integers(-1, 2**63 - 1),
    assigned=ASSIGNMENTS,
    revoked=ASSIGNMENTS,
    delay_ms=st.integers(0, 2**31 - 1),
    error=st.integers(0, 2**15 - 1),
)
COOPERATIVE = st.sampled_from([Version.COMPATIBLE, Version.SESSIONED])


@given(assignment=GROUP_ASSIGNMENTS, version=COOPERATIVE)
def test_assignment_is_unchanged_after_encoding_and_decoding(assignment: GroupAssignment, version: Version) -> None:
    assert decode_assignment(encode_assignment(assignment, version)) == assignment


@given(assignment=GROUP_ASSIGNMENTS)
def test_decoded_eager_assignment_has_no_revocations_and_no_delay(assignment: GroupAssignment) -> None:
    found = decode_assignment(encode_assignment(assignment, Version.EAGER))
    assert (found.assigned, found.revoked, found.delay_ms) == (assignment.assigned, EMPTY, 0)
    assert (found.leader, found.config_offset, found.error) == (
        assignment.leader,
        assignment.config_offset,
        assignment.error,
    )


@given(url=NAMES, offset=st.integers(-1, 2**63 - 1), held=st.none() | GROUP_ASSIGNMENTS, version=COOPERATIVE)
def test_worker_metadata_is_unchanged_after_encoding_and_decoding(
    url: str, offset: int, held: GroupAssignment | None, version: Version
) -> None:
    metadata = WorkerMetadata(url, offset, held)
    assert decode_metadata(encode_metadata(metadata, version)) == metadata


@given(data=st.binary(max_size=60))
def test_decoding_arbitrary_bytes_succeeds_or_raises_group_protocol_error(data: bytes) -> None:
    for decode in (decode_metadata, decode_assignment):
        try:
            decode(data)
        except GroupProtocolError:
            pass
