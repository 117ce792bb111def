"""Tests of the replacement of values in text."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest

from headrace.data.value_replacer import ValueReplacer


def test_values_are_replaced_in_one_pass_and_the_longest_value_first() -> None:
    replacer = ValueReplacer({"db": "${file:/b:db}", "file": "${env:F}", "db-file": "${file:/c:x}"})
    assert replacer.replace("db, file and db-file") == "${file:/b:db}, ${env:F} and ${file:/c:x}"


@pytest.mark.parametrize("text", ["secrets", "topsecret", "secret_1", "_secret", "xsecret", "secreté"])
def test_value_is_not_replaced_inside_a_longer_word(text: str) -> None:
    replacer = ValueReplacer({"secret": "*"})
    assert replacer.replace(f"{text} secret {text}") == f"{text} * {text}"


def test_letter_before_a_value_prevents_its_replacement_only_if_the_value_begins_with_a_letter() -> None:
    """The value `$ecret` is replaced in `x$ecret`, but not in `$ecretx`.

    The value `secre+` ends with a special character. This value is replaced in `secre+x`, but not in `xsecre+`.
    """
    replacer = ValueReplacer({"$ecret": "*", "secre+": "*"})
    assert replacer.replace("x$ecret secre+x x$ecretx xsecre+x") == "x* *x x$ecretx xsecre+x"


@pytest.mark.parametrize("before", ["\n", "\x1f", "\u0434\n", "=", "'", "\\", "https://u:", ""])
def test_value_after_an_escape_sequence_is_replaced(before: str) -> None:
    replacer = ValueReplacer({"hunter22": "*"})
    for escaped in (repr(before + "hunter22"), quote(before + "hunter22", safe=""), f"{before}hunter22"):
        assert "hunter22" not in replacer.replace(escaped)
        assert replacer.replace(escaped).count("*") == 1


def test_escaped_form_of_a_value_is_replaced_with_the_replacement_of_the_value() -> None:
    replacer = ValueReplacer({"a b/c": "${f:k}"})
    assert replacer.replace("a+b%2Fc a%20b/c") == "${f:k} ${f:k}"


def test_replacer_does_not_change_text_if_it_has_nothing_to_replace() -> None:
    assert ValueReplacer({}).replace("text") == "text"


def test_pattern_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    replacer = ValueReplacer({"secret": "*"})
    monkeypatch.setattr(re, "compile", None)
    assert replacer.replace("secret") == "*"
