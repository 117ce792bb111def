"""Generates the function that encodes one message class in one version.

The generated function takes a message and returns a list of buffers. A *run* consists of consecutive fixed-size fields
and, if a variable-size field follows, its length. The function packs each run with one call. Nested messages are
written inline. Large bytes fields and record batches become separate buffers, without a copy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache

from headrace_broker.protocol import primitives
from headrace_broker.protocol.notation import Message, MessageField, StructField, default_of
from headrace_broker.protocol.source import Source

LETTERS = {"bool": "?", "uuid": "16s", **primitives.INTEGER_LETTERS}


@cache
def packer(letters: str) -> Callable[..., bytes]:
    """Return the function that packs big-endian values with these `struct` format letters."""
    return struct.Struct(">" + letters).pack


class EncoderSource(Source):
    """Generates the source code of the encoder for one version of a message class."""

    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(f"<encode {message.__name__} v{version}>")
        self._message = message
        self._version = version
        self._flexible = message.__flexible__[0] <= version <= message.__flexible__[1]
        self._out = "parts"
        self.names.update(
            varint=primitives.unsigned_varint, join=b"".join, bad_uuid=primitives.raise_uuid, length=len, total=sum
        )

    def build(self) -> Source:
        """Generate the source code of the function `encode`."""
        with self.block("def encode(message):"):
            self.line("parts = []; append = parts.append; buffers = []")
            with self.block("try:"):
                self.line("pass")
                self._struct(self._message, "message")
                self._flush()
            with self.block("except ERRORS as error:"):
                self.line("raise failure(error) from None")
            with self.block("if buffers:"):
                self.line("if parts: buffers.append(join(parts))")
                self.line("return buffers")
            self.line("return [join(parts)]")
        return self

    # -- fixed-size values -------------------------------------------------------------------------------------------

    def _flush(self, extra: tuple[str, str] | None = None) -> None:
        """Generate code that packs the values in `run`, and clear `run`.

        `extra` is a value that the code packs after `run`. If `extra` is given, `run` is not cleared, because the
        caller then generates a second branch that packs `run` without `extra`.
        """
        run = [*self.run, (*extra, self.path)] if extra else list(self.run)
        if not extra:
            self.run.clear()
        if not run:
            return
        letters = "".join(letter for letter, _, _ in run)
        values = ", ".join(value for _, value, _ in run if value)
        if not values:
            self.line(f"{self._append}({bytes(len(letters))!r})")
        else:
            about = ", ".join(dict.fromkeys(path for _, value, path in run if value))
            self.line(f"{self._append}({self.name('pack', packer(letters))}({values}))", about)

    def _length(self, variable: str, letter: str) -> None:
        """Generate code that writes a length: the value of the variable named `variable`.

        The value is written in the `struct` format `letter`, or as a varint in flexible versions. In flexible versions,
        the value is already the length plus 1, so the generated code does not add 1.
        """
        if not self._flexible:
            self.defer(letter, variable)
            self._flush()
            return
        with self.block(f"if {variable} < 128:"):
            self._flush(("B", variable))
        with self.block("else:"):
            self._flush()
            self.line(f"{self._append}(varint({variable}))")

    @property
    def _append(self) -> str:
        return "append" if self._out == "parts" else f"{self._out}.append"

    # -- structs and fields ------------------------------------------------------------------------------------------

    def _struct(self, message: type[Message], variable: str) -> None:
        tagged = []
        for field in message.__fields__:
            value = f"{variable}.{field.name}"
            with self.field(field.name):
                if not field.is_present(self._version):
                    self._require_default(field, value)
                elif self._flexible and field.is_tagged(self._version):
                    tagged.append(field)
                else:
                    self._value(field, value, nullable=field.is_nullable(self._version))
        if self._flexible:
            self._tagged_fields(sorted(tagged, key=lambda field: field.tag or 0), variable)

    def _require_default(self, field: MessageField, value: str) -> None:
        if field.ignorable:
            return
        with self.block(f"if {self._differs_from_default(field, value)}:"):
            self.line(f"raise ValueError('version {self._version} has no such field, but it is set')")

    def _differs_from_default(self, field: MessageField, value: str) -> str:
        """Return a Python expression that is true if the expression `value` differs from the field's default."""
        if field.default is None:
            return f"{value} is not None"
        if isinstance(field.default, type):
            default = self.name("default", default_of(field.default))
            return f"{value} is not {default} and {value} != {default}"
        if field.kind == "array":
            return f"{value} != []" if field.nullable[0] <= field.nullable[1] else value
        if isinstance(field.default, bool):
            return f"not {value}" if field.default else value
        return f"{value} != {field.default!r}"

    def _value(self, field: MessageField, value: str, *, nullable: bool) -> None:
        if field.kind in LETTERS:
            if field.kind == "uuid":
                self.line(f"if length({value}) != 16: bad_uuid({value})")
            self.defer(LETTERS[field.kind], value)
        elif isinstance(field, StructField):
            self._nested(field, value, nullable=nullable)
        else:
            {"string": self._text, "bytes": self._bytes, "records": self._records, "array": self._array}[field.kind](
                field, value, nullable
            )

    def _nested(self, field: StructField, value: str, *, nullable: bool) -> None:
        variable = self.fresh("s")
        self.line(f"{variable} = {value}")
        if not nullable:
            self._struct(field.message, variable)
            return
        self._flush()
        with self.block(f"if {variable} is None:"):
            self.line(f"{self._append}(b'\\xff')")
        with self.block("else:"):
            self.line(f"{self._append}(b'\\x01')")
            self._struct(field.message, variable)
            self._flush()

    def _assign_with_length(self, value: str, *, nullable: bool, encode: str, empty: str) -> tuple[str, str]:
        """Generate code that assigns a value and its length on the wire to two variables; return the variables' names.

        `value` is the expression for the value. The code `encode`, such as `.encode()`, is appended to this expression.
        A null value is replaced by the expression `empty`, with the length -1, or 0 in flexible versions.
        """
        variable, size = self.fresh("v"), self.fresh("n")
        plus, null = (" + 1", "0") if self._flexible else ("", "-1")
        self.line(f"{variable} = {value}")
        if nullable:
            with self.block(f"if {variable} is None:"):
                self.line(f"{variable} = {empty}; {size} = {null}")
            with self.block("else:"):
                self.line(f"{variable} = {variable}{encode}; {size} = length({variable}){plus}")
        else:
            self.line(f"{variable} = {variable}{encode}; {size} = length({variable}){plus}")
        return variable, size

    def _text(self, field: MessageField, value: str, nullable: bool) -> None:
        variable, size = self._assign_with_length(value, nullable=nullable, encode=".encode()", empty="b''")
        self._length(size, "h")
        self.line(f"{self._append}({variable})")

    def _bytes(self, field: MessageField, value: str, nullable: bool) -> None:
        variable, size = self._assign_with_length(value, nullable=nullable, encode="", empty="b''")
        self._length(size, "i")
        self._by_reference(variable, size)

    def _by_reference(self, variable: str, size: str) -> None:
        if self._out != "parts":
            self.line(f"{self._append}({variable})")
            return
        with self.block(f"if {size} > {primitives.BY_REFERENCE_SIZE}:"):
            self.line(f"buffers.append(join(parts)); parts.clear(); buffers.append({variable})")
        with self.block("else:"):
            self.line(f"append({variable})")

    def _records(self, field: MessageField, value: str, nullable: bool) -> None:
        variable, size = self.fresh("v"), self.fresh("n")
        plus, null = (" + 1", "0") if self._flexible else ("", "-1")
        self.line(f"{variable} = {value}")
        with self.block(f"if type({variable}) is list:"):
            self.line(f"{size} = total(map(length, {variable})){plus}")
        if nullable:
            with self.block(f"elif {variable} is None:"):
                self.line(f"{variable} = b''; {size} = {null}")
        with self.block("else:"):
            self.line(f"{size} = length({variable}){plus}")
        self._length(size, "i")
        with self.block(f"if type({variable}) is list:"):
            if self._out == "parts":
                self.line(f"buffers.append(join(parts)); parts.clear(); buffers.extend({variable})")
            else:
                self.line(f"{self._out}.extend({variable})")
        with self.block("else:"):
            self._by_reference(variable, size)

    def _array(self, field: MessageField, value: str, nullable: bool) -> None:
        assert field.element is not None
        if field.element.kind in primitives.INTEGER_LETTERS:
            self._integers(field.element.kind, value, nullable)
            return
        variable, size = self._assign_with_length(value, nullable=nullable, encode="", empty="()")
        self._length(size, "i")
        each = self.fresh("e")
        with self.block(f"for {each} in {variable}:"):
            if isinstance(field.element, StructField):
                self._struct(field.element.message, each)
                self.line("pass")
            else:
                self._value(field.element, each, nullable=False)
            self._flush()

    def _integers(self, kind: str, value: str, nullable: bool) -> None:
        self._flush()
        variable = self.fresh("v")
        writers = (primitives.COMPACT_WRITERS if self._flexible else primitives.CLASSIC_WRITERS)[kind]
        write = f"{self._append}({self.name('write', writers)}[length({variable})](*{variable}))"
        self.line(f"{variable} = {value}")
        if not nullable:
            self.line(write)
            return
        null = b"\x00" if self._flexible else b"\xff\xff\xff\xff"
        with self.block(f"if {variable} is None:"):
            self.line(f"{self._append}({null!r})")
        with self.block("else:"):
            self.line(write)

    # -- tagged fields -----------------------------------------------------------------------------------------------

    def _tagged_fields(self, fields: list[MessageField], variable: str) -> None:
        if not fields:
            self.defer("x", "")
            return
        checks = [self._differs_from_default(field, f"{variable}.{field.name}") for field in fields]
        with self.block(f"if {' or '.join(f'({check})' for check in checks)}:"):
            self._flush_keeping_run()
            count = " + ".join(f"(1 if ({check}) else 0)" for check in checks)
            self.line(f"{self._append}(varint({count}))")
            for field, check in zip(fields, checks, strict=True):
                with self.field(field.name), self.block(f"if {check}:"):
                    self._tagged_value(field, f"{variable}.{field.name}")
        with self.block("else:"):
            self._flush(("x", ""))
        self.run.clear()

    def _flush_keeping_run(self) -> None:
        kept = list(self.run)
        self._flush()
        self.run = kept

    def _tagged_value(self, field: MessageField, value: str) -> None:
        kept, self.run = self.run, []
        outer, inner = self._append, self.fresh("tag")
        self.line(f"{inner} = []")
        before, self._out = self._out, inner
        if isinstance(field, StructField):
            if field.is_nullable(self._version):
                self.line(f"{inner}.append(b'\\x01')")
            self._struct(field.message, value)
        else:
            self._value(field, value, nullable=field.is_nullable(self._version))
        self._flush()
        self._out = before
        self.line(f"{inner} = join({inner})")
        self.line(f"{outer}({primitives.encode_unsigned_varint(field.tag or 0)!r} + varint(length({inner})) + {inner})")
        self.run = kept
