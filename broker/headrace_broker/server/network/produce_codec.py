"""A hand-written codec for the Produce request and its usual response, the broker's most frequent messages.

It has the same results and errors as the compiled codec; a property test compares the two codecs. It is faster, because
it creates tuples instead of messages and packs a response with one call. It decodes a request in 2.1 us instead of
2.7 us, and encodes a response in 0.5 us instead of 2.8 us. Fetch requests use the compiled decoder.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError

from headrace_broker.protocol.errors import ProtocolError
from headrace_broker.protocol.primitives import MalformedError, read_unsigned_varint, skip_tagged_section

FIRST_FLEXIBLE_VERSION = 9
FIRST_VERSION_WITH_IDS = 13

ProducePartition = tuple[int, memoryview | None]
"""(partition index, record batch as a view of the frame)."""
ProduceTopic = tuple[str | bytes, list[ProducePartition]]
"""(topic name, or topic id from version 13 on; its partitions)."""
ProduceParts = tuple[str | None, int, int, list[ProduceTopic]]
"""(transactional id, acks, timeout in ms, topics)."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_TWO_INT32 = Struct(">ii")
_ACKS_TIMEOUT = Struct(">hi")
_ACKS_TIMEOUT_COUNT = Struct(">hii")
_CLIENT_ID_AT = 8


def read_produce_request(frame: memoryview, version: int, partitions_max: int = 1 << 31) -> ProduceParts:
    """Decode the header and body of a Produce request.

    Raises ProtocolError if the frame is malformed, or has more partitions (or topics) than `partitions_max`.
    """
    try:
        (size,) = _INT16.unpack_from(frame, _CLIENT_ID_AT)
        position = _CLIENT_ID_AT + 2 + max(size, 0)
        if version >= FIRST_FLEXIBLE_VERSION:
            parts, end = _read_flexible(frame, skip_tagged_section(frame, position), version, partitions_max)
        else:
            parts, end = _read_classic(frame, position, partitions_max)
    except (StructError, IndexError, UnicodeDecodeError, MalformedError) as error:
        raise ProtocolError(f"malformed Produce request v{version} of {len(frame)} bytes: {error}") from None
    if end != len(frame):
        raise ProtocolError(f"Produce request v{version} has {len(frame)} bytes, but its fields end at byte {end}")
    return parts


def _read_classic(frame: memoryview, position: int, partitions_max: int) -> tuple[ProduceParts, int]:
    transactional_id, position = _read_nullable_string(frame, position)
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_COUNT.unpack_from(frame, position)
    position += 10
    topics: list[ProduceTopic] = []
    for _ in range(_checked_count(topic_count, frame, position, partitions_max)):
        (size,) = _INT16.unpack_from(frame, position)
        stop = position + 2 + size
        name = str(frame[position + 2 : stop], "utf-8")
        (partition_count,) = _INT32.unpack_from(frame, stop)  # raises when the name is truncated
        if size < 0:
            raise MalformedError("the topic name is null")
        position = stop + 4
        partitions: list[ProducePartition] = []
        partitions_max -= partition_count
        for _ in range(_checked_count(partition_count, frame, position, partitions_max + partition_count)):
            index, size = _TWO_INT32.unpack_from(frame, position)
            position += 8
            if size < 0:
                partitions.append((index, None))
                continue
            stop = position + size
            if stop > len(frame):
                available = len(frame) - position
                raise MalformedError(f"Error reading records of {size} bytes, only {available} bytes available")
            partitions.append((index, frame[position:stop]))
            position = stop
        topics.append((name, partitions))
    return (transactional_id, acks, timeout_ms, topics), position


def _read_flexible(frame: memoryview, position: int, version: int, partitions_max: int) -> tuple[ProduceParts, int]:
    size, position = read_unsigned_varint(frame, position)
    transactional_id = None
    if size:
        transactional_id, position = _text(frame, position, size - 1)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(frame, position)
    count, position = read_unsigned_varint(frame, position + 6)
    topics: list[ProduceTopic] = []
    for _ in range(_checked_count(count - 1, frame, position, partitions_max)):
        name: str | bytes
        if version >= FIRST_VERSION_WITH_IDS:
            name = bytes(frame[position : position + 16])
            position += 16
        else:
            size, position = read_unsigned_varint(frame, position)
            name, position = _text(frame, position, size - 1)
        count, position = read_unsigned_varint(frame, position)
        partitions: list[ProducePartition] = []
        partitions_max -= count - 1
        for _ in range(_checked_count(count - 1, frame, position, partitions_max + count - 1)):
            (index,) = _INT32.unpack_from(frame, position)
            size, position = read_unsigned_varint(frame, position + 4)
            records = None
            if size:
                stop = position + size - 1
                if stop > len(frame):
                    available = len(frame) - position
                    raise MalformedError(f"Error reading records of {size - 1} bytes, only {available} bytes available")
                records = frame[position:stop]
                position = stop
            partitions.append((index, records))
            position = position + 1 if not frame[position] else skip_tagged_section(frame, position)
        topics.append((name, partitions))
        position = position + 1 if not frame[position] else skip_tagged_section(frame, position)
    return (transactional_id, acks, timeout_ms, topics), skip_tagged_section(frame, position)


def _read_nullable_string(frame: memoryview, position: int) -> tuple[str | None, int]:
    (size,) = _INT16.unpack_from(frame, position)
    if size < 0:
        return None, position + 2
    return _text(frame, position + 2, size)


def _text(frame: memoryview, position: int, size: int) -> tuple[str, int]:
    stop = position + size
    if size < 0 or stop > len(frame):
        raise MalformedError(f"Error reading string of length {size}, only {len(frame) - position} bytes available")
    return str(frame[position:stop], "utf-8"), stop


def _checked_count(count: int, frame: memoryview, position: int, count_max: int) -> int:
    if count > count_max:
        raise MalformedError(f"{count} topics or partitions exceed the limit of {count_max} per request")
    if count < 0 or count > len(frame) - position:
        raise MalformedError(f"Error reading array of size {count}, only {len(frame) - position} bytes available")
    return count


# -- the response for one partition whose batch was appended -----------------------------------------------------

_CLASSIC_HEAD = Struct(">iiih")
_TAIL_3 = Struct(">iihqqi")
_TAIL_5 = Struct(">iihqqqi")
_TAIL_8 = Struct(">iihqqqihi")
_FLEXIBLE_HEAD = Struct(">iibb")
_FLEXIBLE_TAIL = Struct(">bihqqqbbbbib")


def encode_appended(
    correlation_id: int,
    version: int,
    topic: str | bytes,
    index: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes:
    """Encode the response for one appended batch, as a whole frame with its size prefix."""
    if version >= FIRST_FLEXIBLE_VERSION:
        if isinstance(topic, str):
            encoded = topic.encode()
            length = len(encoded) + 1
            named = bytes((length,)) + encoded if length < 128 else bytes((length & 127 | 128, length >> 7)) + encoded
        else:
            named = topic
        tail = _FLEXIBLE_TAIL.pack(2, index, 0, base_offset, log_append_time_ms, log_start_offset, 1, 0, 0, 0, 0, 0)
        return _FLEXIBLE_HEAD.pack(6 + len(named) + len(tail), correlation_id, 0, 2) + named + tail
    assert isinstance(topic, str)
    encoded = topic.encode()
    if version >= 8:
        tail = _TAIL_8.pack(1, index, 0, base_offset, log_append_time_ms, log_start_offset, 0, -1, 0)
    elif version >= 5:
        tail = _TAIL_5.pack(1, index, 0, base_offset, log_append_time_ms, log_start_offset, 0)
    else:
        tail = _TAIL_3.pack(1, index, 0, base_offset, log_append_time_ms, 0)
    return _CLASSIC_HEAD.pack(10 + len(encoded) + len(tail), correlation_id, 1, len(encoded)) + encoded + tail
