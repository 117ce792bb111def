from __future__ import annotations

import math
from typing import Any

import pytest

from headrace_connectors.file.csv_columns import parse_columns


def convert(type_name: str, text: str) -> Any:
    [column] = parse_columns([f"x:{type_name}"])
    assert column.convert is not None
    return column.convert(text)


@pytest.mark.parametrize(("type_name", "text"), [("float32", "1e39"), ("float32", "-1e39"), ("float64", "1e400")])
def test_number_that_exceeds_its_type_is_rejected_and_does_not_become_infinity(type_name: str, text: str) -> None:
    with pytest.raises(ValueError, match=f"'{text}' is too large for a {type_name}"):
        convert(type_name, text)


@pytest.mark.parametrize("type_name", ["float32", "float64"])
def test_infinity_and_nan_are_numbers(type_name: str) -> None:
    assert convert(type_name, "-Infinity") == -math.inf
    assert math.isnan(convert(type_name, "nan"))
