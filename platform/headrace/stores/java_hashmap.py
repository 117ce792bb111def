"""Java's serialized `HashMap<byte[], byte[]>`, the format of Kafka Connect's standalone offsets file.

`dump` writes the same bytes as `ObjectOutputStream` (Java Object Serialization Specification, section 6.4). `load`
reads the output of any JDK. The table may have any capacity, keys and values may be null, and they may be references to
an array earlier in the stream. This module does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

_STREAM_HEADER = b"\xac\xed\x00\x05"
_NULL, _REFERENCE, _CLASS, _OBJECT, _ARRAY, _BLOCK, _END = 0x70, 0x71, 0x72, 0x73, 0x75, 0x77, 0x78
_HASHMAP_CLASS = (
    b"\x72\x00\x11java.util.HashMap\x05\x07\xda\xc1\xc3\x16\x60\xd1\x03\x00\x02"
    b"F\x00\x0aloadFactorI\x00\x09threshold\x78\x70"
)
_BYTES_CLASS = b"\x72\x00\x02[B\xac\xf3\x17\xf8\x06\x08\x54\xe0\x02\x00\x00\x78\x70"
_BASE_HANDLE = 0x7E0000
_BYTES_CLASS_HANDLE = _BASE_HANDLE + 2  # the map's class and the map have handles 0 and 1


class JavaStreamError(ValueError):
    """The bytes are not a serialized `HashMap<byte[], byte[]>`. The message contains the byte offset and the error."""


def table_capacity(size: int) -> int:
    """Return the table length of a `HashMap` after `size` single insertions. The table doubles when it is 3/4 full."""
    capacity = 16
    while size > capacity * 3 // 4:
        capacity *= 2
    return capacity


def dump(entries: Mapping[bytes | None, bytes | None]) -> bytes:
    """Serialize a map as Java does."""
    capacity = table_capacity(len(entries))
    parts = [
        _STREAM_HEADER,
        bytes([_OBJECT]),
        _HASHMAP_CLASS,
        struct.pack(">fi", 0.75, capacity * 3 // 4),
        struct.pack(">BBii", _BLOCK, 8, capacity, len(entries)),
    ]
    array_class = bytes([_ARRAY]) + _BYTES_CLASS
    for entry in entries.items():
        for item in entry:
            if item is None:
                parts.append(bytes([_NULL]))
                continue
            parts += [array_class, struct.pack(">i", len(item)), item]
            array_class = struct.pack(">BBI", _ARRAY, _REFERENCE, _BYTES_CLASS_HANDLE)
    parts.append(bytes([_END]))
    return b"".join(parts)


def load(stream: bytes) -> dict[bytes | None, bytes | None]:
    """Deserialize a map. Raises JavaStreamError."""
    return _Reader(stream).read_map()


class _Reader:
    """Reads the stream once. `_handles` numbers classes and objects as the writer did."""

    def __init__(self, stream: bytes) -> None:
        self._stream = stream
        self._position = 0
        self._handles: list[object] = []

    def read_map(self) -> dict[bytes | None, bytes | None]:
        if self._take(4) != _STREAM_HEADER:
            raise JavaStreamError("the file is not a Java object stream (it does not start with ac ed 00 05)")
        self._expect(_OBJECT, "an object")
        if (name := self._read_class()) != "java.util.HashMap":
            raise JavaStreamError(f"the file contains a {name}, but a java.util.HashMap is expected")
        self._handles.append("the map")
        self._take(8)  # skip load factor and threshold
        self._expect(_BLOCK, "the map's size")
        if self._take(1) != b"\x08":
            raise JavaStreamError(f"unexpected block length at byte {self._position - 1}")
        _capacity, size = self._unpack(">ii", 8)
        entries: dict[bytes | None, bytes | None] = {}
        for _ in range(size):
            key = self._read_bytes()
            entries[key] = self._read_bytes()
        self._expect(_END, "the end of the map")
        return entries

    def _read_bytes(self) -> bytes | None:
        tag = self._take(1)[0]
        if tag == _NULL:
            return None
        if tag == _REFERENCE:
            item = self._referred()
            if not isinstance(item, bytes):
                raise JavaStreamError(f"the reference before byte {self._position} does not refer to a byte array")
            return item
        if tag != _ARRAY:
            raise JavaStreamError(f"expected a byte array at byte {self._position - 1}, found tag {tag:#x}")
        if (name := self._read_class()) != "[B":
            raise JavaStreamError(f"the file contains an array of class {name}, but byte[] is expected")
        (length,) = self._unpack(">i", 4)
        handle = len(self._handles)
        self._handles.append(None)
        self._handles[handle] = item = self._take(length)
        return item

    def _read_class(self) -> str:
        tag = self._take(1)[0]
        if tag == _REFERENCE:
            name = self._referred()
            if not isinstance(name, str):
                raise JavaStreamError(f"the reference before byte {self._position} does not refer to a class")
            return name
        if tag != _CLASS:
            raise JavaStreamError(f"expected a class at byte {self._position - 1}, found tag {tag:#x}")
        (length,) = self._unpack(">H", 2)
        name = self._take(length).decode()
        self._take(8 + 1)  # serial version and flags
        self._handles.append(name)
        (fields,) = self._unpack(">H", 2)
        for _ in range(fields):
            self._take(1)
            (length,) = self._unpack(">H", 2)
            self._take(length)
        self._expect(_END, "the end of a class")
        self._expect(_NULL, "no super class")
        return name

    def _referred(self) -> object:
        (handle,) = self._unpack(">I", 4)
        if not 0 <= handle - _BASE_HANDLE < len(self._handles):
            raise JavaStreamError(f"the reference before byte {self._position} is invalid")
        return self._handles[handle - _BASE_HANDLE]

    def _expect(self, tag: int, what: str) -> None:
        if self._take(1)[0] != tag:
            raise JavaStreamError(f"expected {what} at byte {self._position - 1}")

    def _unpack(self, layout: str, size: int) -> tuple[int, ...]:
        return struct.unpack(layout, self._take(size))

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._stream):
            raise JavaStreamError(f"the file is truncated at byte {len(self._stream)}")
        taken = self._stream[self._position : end]
        self._position = end
        return taken
