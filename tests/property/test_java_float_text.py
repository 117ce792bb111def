"""Tests that a floating-point number is formatted as in Java, as the shortest text that parses to the same number."""

from __future__ import annotations

import math
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.java import double_text, float32, float_text, wrap

_JAVA = re.compile(r"-?(\d+\.\d+|\d\.\d+E-?\d+)")
_finite = st.floats(allow_nan=False, allow_infinity=False)
_finite32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _check_shape(text: str, value: float) -> None:
    assert _JAVA.fullmatch(text)
    assert ("E" in text) == (value != 0 and not 1e-3 <= abs(value) < 1e7)
    mantissa = text.partition("E")[0]
    assert mantissa.endswith(".0") or not mantissa.endswith("0")


@settings(deadline=None)
@given(_finite)
def test_double_is_formatted_as_the_shortest_text_that_parses_to_the_same_number(value: float) -> None:
    text = double_text(value)
    _check_shape(text, value)
    assert math.copysign(1, float(text)) == math.copysign(1, value)
    assert float(text) == value


@settings(deadline=None)
@given(_finite32)
def test_float_is_formatted_as_the_shortest_text_that_parses_to_the_same_number(value: float) -> None:
    text = float_text(value)
    _check_shape(text, value)
    assert float32(float(text)) == value
    digits = len(re.sub(r"E.*|[-.]", "", text).strip("0"))
    if digits > 2:
        assert float32(float(f"{value:.{digits - 2}e}")) != value


@settings(deadline=None)
@given(st.integers(), st.sampled_from([8, 16, 32, 64]))
def test_wrapping_an_integer_keeps_only_its_lowest_bits(number: int, bits: int) -> None:
    wrapped = wrap(number, bits)
    assert -(1 << (bits - 1)) <= wrapped < 1 << (bits - 1)
    assert (wrapped - number) % (1 << bits) == 0
