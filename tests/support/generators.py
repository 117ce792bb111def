"""Generators of random test data: small functions of a `random.Random` with the names and meanings of Hypothesis.

Hypothesis spends most of the time of a differential test on its own records of each choice. These generators keep no
records: a seed determines the data. They cannot shrink a failing case.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from random import Random
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Generator(Generic[T]):
    """A function that draws a value from a source of random numbers."""

    __slots__ = ("draw",)

    def __init__(self, draw: Callable[[Random], T]) -> None:
        self.draw = draw

    def __or__(self, other: Generator[U]) -> Generator[T | U]:
        return OneOf([*self.alternatives(), *other.alternatives()])

    def alternatives(self) -> list[Generator[Any]]:
        """Return the generators of which this one selects one with equal probability."""
        return [self]

    def map(self, convert: Callable[[T], U]) -> Generator[U]:
        draw = self.draw
        return Generator(lambda random: convert(draw(random)))

    def flatmap(self, convert: Callable[[T], Generator[U]]) -> Generator[U]:
        draw = self.draw
        return Generator(lambda random: convert(draw(random)).draw(random))


class OneOf(Generator[Any]):
    """Selects one of several generators."""

    __slots__ = ("_alternatives",)

    def __init__(self, alternatives: list[Generator[Any]]) -> None:
        self._alternatives = alternatives
        draws = [each.draw for each in alternatives]
        super().__init__(lambda random: draws[int(random.random() * len(draws))](random))

    def alternatives(self) -> list[Generator[Any]]:
        return self._alternatives


def just(value: T) -> Generator[T]:
    return Generator(lambda _: value)


def sampled_from(items: Sequence[T]) -> Generator[T]:
    count = len(items)
    return Generator(lambda random: items[int(random.random() * count)])


def booleans() -> Generator[bool]:
    return Generator(lambda random: random.random() < 0.5)


def integers(low: int, high: int) -> Generator[int]:
    """Generate integers, half of them of a random magnitude: numbers of all lengths occur."""
    bits = (high - low).bit_length()

    def draw(random: Random) -> int:
        if random.random() < 0.5 or bits < 8:
            return random.randint(low, high)
        number = random.getrandbits(random.randint(1, bits))
        return min(max(number if random.random() < 0.5 else -number, low), high)

    return Generator(draw)


def floats(width: int = 64) -> Generator[float]:
    """Generate floating point numbers with random bits, decimal fractions and whole numbers."""
    form, unsigned = (">f", ">I") if width == 32 else (">d", ">Q")

    def draw(random: Random) -> float:
        choice = random.random()
        if choice < 0.4:
            return float(struct.unpack(form, struct.pack(unsigned, random.getrandbits(width)))[0])
        number = random.uniform(-1, 1) * 10.0 ** random.randint(-10, 25)
        number = round(number, random.randint(0, 6)) if choice < 0.8 else float(int(number))
        return float(struct.unpack(form, struct.pack(form, number))[0])

    return Generator(draw)


def binary(max_size: int) -> Generator[bytes]:
    return Generator(lambda random: random.randbytes(random.randint(0, max_size)))


def _character(random: Random) -> str:
    choice = random.random()
    if choice < 0.5:
        return chr(random.randrange(0x80))
    if choice < 0.75:
        return chr(random.randrange(0x80, 0x800))
    code = random.randrange(0x800, 0x10000 if choice < 0.9 else 0x110000)
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ud7ff"


def text(alphabet: Generator[str] | None = None, *, max_size: int) -> Generator[str]:
    """Generate strings of characters of the alphabet, or of all characters except surrogates."""
    draw = _character if alphabet is None else alphabet.draw
    return Generator(lambda random: "".join([draw(random) for _ in range(random.randint(0, max_size))]))


def lists(
    items: Generator[T], *, min_size: int = 0, max_size: int, unique_by: Callable[[T], Hashable] | None = None
) -> Generator[list[T]]:
    """Generate lists. A list is shorter if `unique_by` returns the same value for several items."""
    draw = items.draw

    def draw_list(random: Random) -> list[T]:
        drawn = [draw(random) for _ in range(random.randint(min_size, max_size))]
        return drawn if unique_by is None else list({unique_by(item): item for item in drawn}.values())

    return Generator(draw_list)


def tuples(*items: Generator[Any]) -> Generator[tuple[Any, ...]]:
    return Generator(lambda random: tuple([item.draw(random) for item in items]))


def builds(build: Callable[..., T], *arguments: Generator[Any]) -> Generator[T]:
    draws = [argument.draw for argument in arguments]
    return Generator(lambda random: build(*[draw(random) for draw in draws]))


def fixed_dictionaries(
    required: Mapping[str, Generator[T]], *, optional: Mapping[str, Generator[T]] | None = None
) -> Generator[dict[str, T]]:
    """Generate dictionaries with all required keys and about half of the optional keys."""

    def draw(random: Random) -> dict[str, T]:
        drawn = {name: item.draw(random) for name, item in required.items()}
        for name, item in (optional or {}).items():
            if random.random() < 0.5:
                drawn[name] = item.draw(random)
        return drawn

    return Generator(draw)


def recursive(leaves: Generator[T], extend: Callable[[Generator[T]], Generator[T]], *, depth: int = 3) -> Generator[T]:
    """Generate leaves, and what `extend` returns for the generator of the level below, in up to `depth` levels."""
    level = leaves
    for _ in range(depth):
        level = OneOf([leaves, extend(level)])
    return level


def composite(draw_all: Callable[..., T]) -> Callable[..., Generator[T]]:
    """Make a generator of a function. Its first argument is a function that draws from a generator."""

    def create(*arguments: Any) -> Generator[T]:
        def draw(random: Random) -> T:
            return draw_all(lambda generator: generator.draw(random), *arguments)

        return Generator(draw)

    return create
