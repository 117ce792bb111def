"""Defines the notation in which message classes are declared, and the base classes of messages.

The attributes of a message class declare its fields, their versions and their order on the wire::

    class BatchIndexAndErrorMessage(Message):
        batch_index: int = int32("8+")
        batch_index_error_message: str | None = string("8+", nullable="8+", default=None)

A version range is ``"3+"``, ``"3-5"``, ``"4"``, ``""`` (every version) or ``"none"``. A field is not sent in versions
outside its range: decoding returns its default, and encoding another value is an error unless the field is *ignorable*.
``tag=n`` declares a tagged field (KIP-482). The argument ``tagged`` is the range of versions in which the field is
tagged. By default, these are all versions of the field.

Message objects are slotted, mutable, compared by value and constructed by keyword. Every field has Kafka's default (0,
"", an empty list, …). A default struct is shared and therefore read-only: assign a new struct instead of changing the
default. ``codec`` compiles encoders and decoders from ``__fields__`` at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypedDict, TypeVar, cast, dataclass_transform

if TYPE_CHECKING:
    from typing import Unpack

ZERO_UUID = bytes(16)
VERSION_MAX = 32767

Buffer = bytes | bytearray | memoryview
"""Any bytes-like object. Memoryviews must be one-dimensional views of bytes, so that ``len`` is their size."""

Records = Buffer | list[Buffer]
"""Record batches in one buffer or in several consecutive buffers. They are decoded as a memoryview of
the frame, and never copied."""


def parse_versions(text: str) -> tuple[int, int]:
    """Return the (first, last) version of a range such as "3+", "3-5", "4", "" (all) or "none" (an empty range)."""
    if text == "":
        return 0, VERSION_MAX
    if text == "none":
        return 1, 0
    if text.endswith("+"):
        return int(text[:-1]), VERSION_MAX
    first, _, last = text.partition("-")
    return int(first), int(last or first)


class FieldOptions(TypedDict, total=False):
    """The options that every kind of field accepts, in addition to its versions and its default."""

    nullable: str
    ignorable: bool
    tag: int
    tagged: str


class MessageField:
    """One field of a message, with its kind ("int32", "struct", "array", …), versions and default."""

    __slots__ = ("default", "element", "ignorable", "kind", "name", "nullable", "tag", "tagged", "versions")

    def __init__(
        self,
        kind: str,
        versions: str,
        default: object,
        *,
        element: MessageField | None = None,
        nullable: str = "none",
        ignorable: bool = False,
        tag: int | None = None,
        tagged: str | None = None,
    ) -> None:
        self.name = ""
        self.kind = kind
        self.versions = parse_versions(versions)
        self.default = default
        self.element = element
        self.nullable = parse_versions(nullable)
        self.ignorable = ignorable
        self.tag = tag
        self.tagged = parse_versions(versions if tagged is None else tagged) if tag is not None else (1, 0)

    def is_present(self, version: int) -> bool:
        """Return whether the field exists in `version`."""
        return self.versions[0] <= version <= self.versions[1]

    def is_nullable(self, version: int) -> bool:
        """Return whether the field may be null in `version`."""
        return self.nullable[0] <= version <= self.nullable[1]

    def is_tagged(self, version: int) -> bool:
        """Return whether the field is a tagged field in `version`."""
        return self.tagged[0] <= version <= self.tagged[1]


class StructField(MessageField):
    """A field (or an array's element) that is itself a message of the class `message`."""

    __slots__ = ("message",)

    def __init__(self, message: type[Message], versions: str, default: object, **options: Unpack[FieldOptions]) -> None:
        super().__init__("struct", versions, default, **options)
        self.message = message


# The functions below return Any, so that a type checker trusts the attribute's annotation and sees a default value.


def boolean(versions: str = "", *, default: bool = False, **options: Unpack[FieldOptions]) -> Any:
    """Declare a boolean of one byte."""
    return MessageField("bool", versions, default, **options)


def int8(versions: str = "", *, default: int = 0, **options: Unpack[FieldOptions]) -> Any:
    """Declare a signed integer of one byte."""
    return MessageField("int8", versions, default, **options)


def int16(versions: str = "", *, default: int = 0, **options: Unpack[FieldOptions]) -> Any:
    """Declare a signed integer of two bytes."""
    return MessageField("int16", versions, default, **options)


def uint16(versions: str = "", *, default: int = 0, **options: Unpack[FieldOptions]) -> Any:
    """Declare an unsigned integer of two bytes."""
    return MessageField("uint16", versions, default, **options)


def int32(versions: str = "", *, default: int = 0, **options: Unpack[FieldOptions]) -> Any:
    """Declare a signed integer of four bytes."""
    return MessageField("int32", versions, default, **options)


def uint32(versions: str = "", *, default: int = 0, **options: Unpack[FieldOptions]) -> Any:
    """Declare an unsigned integer of four bytes."""
    return MessageField("uint32", versions, default, **options)


def int64(versions: str = "", *, default: int = 0, **options: Unpack[FieldOptions]) -> Any:
    """Declare a signed integer of eight bytes."""
    return MessageField("int64", versions, default, **options)


def float64(versions: str = "", *, default: float = 0.0, **options: Unpack[FieldOptions]) -> Any:
    """Declare a floating-point number of eight bytes."""
    return MessageField("float64", versions, default, **options)


def uuid(versions: str = "", *, default: bytes = ZERO_UUID, **options: Unpack[FieldOptions]) -> Any:
    """Declare a UUID of 16 bytes. All zeros stand for no UUID."""
    return MessageField("uuid", versions, default, **options)


def string(versions: str = "", *, default: str | None = "", **options: Unpack[FieldOptions]) -> Any:
    """Declare a string of at most 32767 bytes of UTF-8 (unbounded in flexible versions)."""
    return MessageField("string", versions, default, **options)


def binary(versions: str = "", *, default: bytes | None = b"", **options: Unpack[FieldOptions]) -> Any:
    """Declare a bytes field. Its decoded value is a copy, which outlives the frame."""
    return MessageField("bytes", versions, default, **options)


def record_batches(versions: str = "", *, default: bytes | None = None, **options: Unpack[FieldOptions]) -> Any:
    """Declare a field of record batches, which are encoded and decoded without a copy (see `Records`)."""
    return MessageField("records", versions, default, **options)


def struct(message: type[Message], versions: str = "", **options: Unpack[FieldOptions]) -> Any:
    """Declare a nested message. Its default is a message in which all fields have their defaults."""
    return StructField(message, versions, message, **options)


def nullable_struct(message: type[Message], versions: str = "", **options: Unpack[FieldOptions]) -> Any:
    """Declare a nested message that is None by default and nullable in every version of the field."""
    return StructField(message, versions, None, **{"nullable": versions or "0+", **options})  # type: ignore[arg-type]


def array(
    element: type[Message] | Callable[[], Any],
    versions: str = "",
    *,
    default: list[Any] | None = [],  # noqa: B006 (the list is only a marker: each message gets a new list)
    **options: Unpack[FieldOptions],
) -> Any:
    """Declare an array of nested messages (`array(Topic)`) or of plain values (`array(int32)`)."""
    each = StructField(element, "", None) if isinstance(element, type) else element()
    return MessageField("array", versions, default, element=each, **options)


def _compile_and_construct(self: Message, **values: object) -> None:
    """Initial constructor of a message class: compile the real constructor, install it, and call it."""
    cls: Any = type(self)
    cls.__init__ = compile_constructor(cls)
    cls.__init__(self, **values)


class _MessageType(type):
    """Metaclass that replaces field declarations with `__slots__`: a class attribute cannot have the name of a slot."""

    def __new__(
        mcs,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        versions: str = "",
        flexible: str = "none",
    ) -> _MessageType:
        fields = tuple(value for value in namespace.values() if isinstance(value, MessageField))
        for field_name, field in [item for item in namespace.items() if isinstance(item[1], MessageField)]:
            field.name = field_name
            del namespace[field_name]
        if "__slots__" not in namespace:
            namespace["__slots__"] = tuple(field.name for field in fields)
        namespace.setdefault("__fields__", fields)
        namespace["__init__"] = _compile_and_construct
        if api_key is not None:
            namespace["__api_key__"] = api_key
        if versions:
            namespace["__versions__"] = parse_versions(versions)
        if flexible != "none":
            namespace["__flexible__"] = parse_versions(flexible)
        return super().__new__(mcs, name, bases, namespace)


@dataclass_transform(kw_only_default=True, eq_default=True)
class Message(metaclass=_MessageType):
    """Base class of requests, responses, stored records, and the messages nested in them."""

    __slots__ = ()
    __fields__: ClassVar[tuple[MessageField, ...]]
    __api_key__: ClassVar[int] = -1
    __versions__: ClassVar[tuple[int, int]] = (0, VERSION_MAX)
    __flexible__: ClassVar[tuple[int, int]] = (1, 0)
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message) or other.__fields__ is not self.__fields__:
            return NotImplemented
        return all(getattr(self, field.name) == getattr(other, field.name) for field in self.__fields__)

    def __repr__(self) -> str:
        shown = (f"{field.name}={_abbreviate(getattr(self, field.name))}" for field in self.__fields__)
        return f"{type(self).__name__}({', '.join(shown)})"


ResponseT_co = TypeVar("ResponseT_co", bound="Response", covariant=True)


class Response(Message):
    """A response to a request."""

    __slots__ = ()


class Request(Message, Generic[ResponseT_co]):
    """A request. Its type parameter is its response class, so type checkers know what `request(message)` returns."""

    __slots__ = ()


def default_of(message: type[Message]) -> Message:
    """Return the shared, read-only instance of `message` in which all fields have their defaults."""
    default = _defaults.get(message)
    if default is None:
        frozen = _MessageType(
            message.__name__, (_ReadOnly, message), {"__slots__": (), "__fields__": message.__fields__}
        )
        default = cast(Message, object.__new__(cast(Any, frozen)))
        for field in message.__fields__:
            getattr(message, field.name).__set__(default, _frozen_default(field))
        _defaults[message] = default
    return default


def compile_constructor(message: type[Message]) -> Callable[..., None]:
    """Return an `__init__` for the class `message`, with a keyword argument for each field."""
    parameters, body = ["self", "*"] if message.__fields__ else ["self"], ["pass"]
    namespace: dict[str, Any] = {"new_list": []}
    for number, field in enumerate(message.__fields__):
        name = field.name
        if field.kind == "array" and field.default is not None:
            parameters.append(f"{name}=new_list")
            body.append(f"self.{name} = [] if {name} is new_list else {name}")
            continue
        namespace[f"default{number}"] = _frozen_default(field)
        parameters.append(f"{name}=default{number}")
        body.append(f"self.{name} = {name}")
    source = f"def __init__({', '.join(parameters)}):\n    " + "\n    ".join(body)
    exec(source, namespace)
    constructor: Callable[..., None] = namespace["__init__"]
    constructor.__qualname__ = f"{message.__qualname__}.__init__"
    return constructor


class _ReadOnly:
    """Mixin for the shared default of a message class. The default is read-only. A copy of the default is mutable."""

    __slots__ = ()

    def __new__(cls, **values: object) -> Any:
        return cls.__mro__[2](**values)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"cannot set '{name}': this {type(self).__name__} is a default value that messages share; assign a new "
            "object"
        )


_defaults: dict[type[Message], Message] = {}


def _frozen_default(field: MessageField) -> object:
    if isinstance(field.default, type):
        return default_of(field.default)
    if isinstance(field.default, list):
        return []
    return field.default


def _abbreviate(value: object) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > 40:
        return f"<{len(value)} bytes>"
    return repr(value)
