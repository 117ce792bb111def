"""Generates the function that decodes one message class in one version.

The generated function takes (buffer, position) and returns (message, position after the message). A *run* consists of
consecutive fixed-size fields and, if a variable-size field follows, its length. The function unpacks each run with one
call. Nested messages are read inline. Malformed input cannot exhaust the memory: every length is compared with the
bytes left in the buffer before memory is allocated, and the number of nested messages is limited. Record batches are
memoryviews of the buffer. All other values are copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from headrace_broker.protocol import primitives
from headrace_broker.protocol.encoding import LETTERS
from headrace_broker.protocol.notation import Message, MessageField, StructField, default_of
from headrace_broker.protocol.source import Source

_SIZES = {"bool": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "float64": 8, "uuid": 16}


@cache
def unpacker(letters: str) -> Callable[..., tuple[Any, ...]]:
    """Return the function that unpacks big-endian values with these `struct` format letters."""
    return struct.Struct(">" + letters).unpack_from


class DecoderSource(Source):
    """Generates the source code of the decoder for one version of a message class."""

    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(f"<decode {message.__name__} v{version}>")
        self._message = message
        self._version = version
        self._flexible = message.__flexible__[0] <= version <= message.__flexible__[1]
        self._keeps_views = self._has_records(message)
        self.names.update(
            new=object.__new__,
            rest_of_varint=primitives.rest_of_varint,
            read_varint=primitives.read_unsigned_varint,
            skip_tags=primitives.skip_tagged_fields,
            short=primitives.raise_short,
            null=primitives.raise_null,
            bad_count=primitives.raise_count,
            too_many=primitives.raise_elements,
            bad_tag_size=primitives.raise_tag_size,
            length=len,
            unpack_from=struct.unpack_from,
        )

    def build(self) -> Source:
        """Generate the source code of the function `decode`."""
        with self.block("def decode(buffer, position=0):"):
            with self.block("try:"):
                kind = "memoryview" if self._keeps_views else "bytes"
                self.line(f"if type(buffer) is not {kind}: buffer = {kind}(buffer)")
                self.line(f"end = length(buffer); elements_left = {primitives.ELEMENTS_MAX}")
                self._struct(self._message, "message")
                self._flush()
                self.line("return message, position")
            with self.block("except ERRORS as error:"):
                self.line("raise failure(error, position) from None")
        return self

    def _has_records(self, message: type[Message]) -> bool:
        for field in message.__fields__:
            inner = field.element if field.element is not None else field
            if field.is_present(self._version) and (
                field.kind == "records" or (isinstance(inner, StructField) and self._has_records(inner.message))
            ):
                return True
        return False

    # -- fixed-size values -------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        run, self.run = self.run, []
        if not run:
            return
        if len(run) == 1 and run[0][0] == "B":
            self.line(f"{run[0][1]} = buffer[position]; position += 1", run[0][2])
            return
        letters = "".join(letter for letter, _, _ in run)
        targets = ", ".join(target for _, target, _ in run) + ("," if len(run) == 1 else "")
        about = ", ".join(dict.fromkeys(path for _, _, path in run))
        size = struct.calcsize(">" + letters)
        self.line(f"{targets} = {self.name('unpack', unpacker(letters))}(buffer, position); position += {size}", about)

    def _length(self, variable: str, letter: str) -> None:
        """Generate code that reads a length into `variable`.

        The length is encoded in the `struct` format `letter`, or as a varint in flexible versions. Null has a negative
        length, or the length zero in flexible versions.
        """
        if not self._flexible:
            self.defer(letter, variable)
            self._flush()
            return
        self.defer("B", variable)
        self._flush()
        self.line(f"if {variable} > 127: {variable}, position = rest_of_varint(buffer, position, {variable})")

    # -- structs and fields ------------------------------------------------------------------------------------------

    def _struct(self, message: type[Message], variable: str) -> None:
        self.line(f"{variable} = new({self.name('class_', message)})")
        tagged = []
        for field in message.__fields__:
            target = f"{variable}.{field.name}"
            with self.field(field.name):
                if not field.is_present(self._version):
                    self._default(field, target)
                elif self._flexible and field.is_tagged(self._version):
                    self._default(field, target)
                    tagged.append(field)
                else:
                    self._value(field, target, nullable=field.is_nullable(self._version))
        if self._flexible:
            self._tagged_fields(tagged, variable)

    def _default(self, field: MessageField, target: str) -> None:
        if isinstance(field.default, list):
            self.line(f"{target} = []")
        elif isinstance(field.default, type):
            self.line(f"{target} = {self.name('default', default_of(field.default))}")
        else:
            self.line(f"{target} = {field.default!r}")

    def _value(self, field: MessageField, target: str, *, nullable: bool) -> None:
        if field.kind in LETTERS:
            self.defer(LETTERS[field.kind], target)
        elif isinstance(field, StructField):
            self._nested(field, target, nullable=nullable)
        elif field.kind == "array":
            self._array(field, target, nullable=nullable)
        else:
            self._bytes(field.kind, target, nullable=nullable)

    def _nested(self, field: StructField, target: str, *, nullable: bool) -> None:
        variable = self.fresh("s")
        if not nullable:
            self._struct(field.message, variable)
            self.line(f"{target} = {variable}")
            return
        self.defer("b", variable)
        self._flush()
        with self.block(f"if {variable} < 0:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self._struct(field.message, variable)
            self._flush()
            self.line(f"{target} = {variable}")

    def _sized(self, letter: str, target: str, *, nullable: bool) -> str:
        """Generate code that reads a length and handles null; return the name of the length variable.

        See `_length` for `letter`. If the value is null, the code sets `target` to None, or raises an error if the
        field is not `nullable`.
        """
        size = self.fresh("n")
        self._length(size, letter)
        with self.block(f"if not {size}:" if self._flexible else f"if {size} < 0:"):
            if nullable:
                self.line(f"{target} = None")
            else:
                self.line("null()")
        return size

    def _bytes(self, kind: str, target: str, *, nullable: bool) -> None:
        size = self._sized("h" if kind == "string" else "i", target, nullable=nullable)
        stop = self.fresh("p")
        with self.block("else:"):
            self.line(f"{stop} = position + {size}" + (" - 1" if self._flexible else ""))
            self.line(f"if {stop} > end: short({stop} - position, end - position)")
            part = f"buffer[position:{stop}]"
            if kind == "string":
                part = f"str({part}, 'utf-8')" if self._keeps_views else f"{part}.decode()"
            elif kind == "bytes" and self._keeps_views:
                part = f"bytes({part})"
            self.line(f"{target} = {part}; position = {stop}")

    def _array(self, field: MessageField, target: str, *, nullable: bool) -> None:
        element = field.element
        assert element is not None
        if self._flexible and element.kind in primitives.INTEGER_LETTERS:
            self._compact_integers(element.kind, target, nullable=nullable)
            return
        count = self._sized("i", target, nullable=nullable)
        with self.block("else:"):
            if self._flexible:
                self.line(f"{count} -= 1")
            smallest = max(1, self._min_size_bytes(element))
            self.line(f"if {count} * {smallest} > end - position: bad_count({count}, end - position)")
            if isinstance(element, StructField):
                self.line(f"elements_left -= {count}")
                self.line("if elements_left < 0: too_many()")
            if element.kind in primitives.INTEGER_LETTERS:
                self._integers(element.kind, target, count)
            else:
                self._elements(element, target, count)

    def _compact_integers(self, kind: str, target: str, *, nullable: bool) -> None:
        """Generate code that reads a compact array of integers of the type `kind` into `target`.

        If the array has few elements, the generated code calls a function that reads that number of integers. The
        function raises an error if the buffer ends too early. If the array has many elements, the generated code first
        checks that the buffer contains enough bytes.
        """
        count, size = self.fresh("n"), _SIZES[kind]
        self.defer("B", count)
        self._flush()
        with self.block(f"if {count} == 1:"):
            self.line(f"{target} = []")
        with self.block(f"elif 1 < {count} < {len(primitives.COMPACT_READERS[kind])}:"):
            readers = self.name("read", primitives.COMPACT_READERS[kind])
            self.line(f"{target} = [*{readers}[{count}](buffer, position)]; position += {count} * {size} - {size}")
        with self.block(f"elif {count}:"):
            self.line(f"if {count} > 127: {count}, position = rest_of_varint(buffer, position, {count})")
            self.line(f"if {count} * {size} > end - position + {size}: bad_count({count} - 1, end - position)")
            self._integers(kind, target, f"({count} - 1)")
        with self.block("else:"):
            self.line(f"{target} = None" if nullable else "null()")

    def _integers(self, kind: str, target: str, count: str) -> None:
        letter = primitives.INTEGER_LETTERS[kind]
        unpack = f"unpack_from(f'>{{{count}}}{letter}', buffer, position)"
        self.line(f"{target} = [*{unpack}]; position += {count} * {_SIZES[kind]}")

    def _elements(self, element: MessageField, target: str, count: str) -> None:
        items, each = self.fresh("a"), self.fresh("e")
        self.line(f"{target} = {items} = []")
        with self.block(f"for _ in range({count}):"):
            if isinstance(element, StructField):
                self._struct(element.message, each)
            else:
                self._value(element, each, nullable=False)
            self._flush()
            self.line(f"{items}.append({each})")

    def _min_size_bytes(self, field: MessageField) -> int:
        """Return the minimum size in bytes that a value of `field` has on the wire."""
        if field.kind in _SIZES:
            return _SIZES[field.kind]
        if not isinstance(field, StructField):
            return 1 if self._flexible else 2 if field.kind == "string" else 4
        if field.is_nullable(self._version):
            return 1
        present = [each for each in field.message.__fields__ if each.is_present(self._version)]
        if not self._flexible:
            return sum(map(self._min_size_bytes, present))
        return 1 + sum(self._min_size_bytes(each) for each in present if not each.is_tagged(self._version))

    # -- tagged fields -----------------------------------------------------------------------------------------------

    def _tagged_fields(self, fields: list[MessageField], variable: str) -> None:
        count = self.fresh("t")
        self.defer("B", count)
        self._flush()
        with self.block(f"if {count}:"):
            self.line(f"if {count} > 127: {count}, position = rest_of_varint(buffer, position, {count})")
            if not fields:
                self.line(f"position = skip_tags(buffer, position, {count})")
                return
            tag, size, start = self.fresh("tag"), self.fresh("n"), self.fresh("p")
            with self.block(f"for _ in range({count}):"):
                self.line(f"{tag}, position = read_varint(buffer, position)")
                self.line(f"{size}, position = read_varint(buffer, position)")
                self.line(f"if {size} > end - position: short({size}, end - position)")
                self.line(f"{start} = position")
                for number, field in enumerate(fields):
                    with (
                        self.field(field.name),
                        self.block(f"{'elif' if number else 'if'} {tag} == {field.tag}:"),
                    ):
                        self._tagged_value(field, f"{variable}.{field.name}")
                        self.line(f"if position != {start} + {size}: bad_tag_size(position - {start}, {size})")
                with self.block("else:"):
                    self.line(f"position += {size}")

    def _tagged_value(self, field: MessageField, target: str) -> None:
        if isinstance(field, StructField) and field.is_nullable(self._version):
            present = self.fresh("n")
            self.line(f"{present}, position = read_varint(buffer, position)")
            with self.block(f"if not {present}:"):
                self.line(f"{target} = None")
            with self.block("else:"):
                self._nested(field, target, nullable=False)
                self._flush()
        else:
            self._value(field, target, nullable=field.is_nullable(self._version))
            self._flush()
