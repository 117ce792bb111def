"""What is wrong with a worker's converters, by their keys."""

from __future__ import annotations

from headrace.runtime.converter_check import check

GOOD = {"key.converter": "StringConverter", "value.converter": "org.apache.kafka.connect.json.JsonConverter"}


def test_good_converters_have_no_errors() -> None:
    assert check({**GOOD, "value.converter.schemas.enable": "false"}) == []


def test_each_converter_that_cannot_be_used_is_named() -> None:
    errors = check({"key.converter": "Jsn", "value.converter": "no.such:Thing", "header.converter": "StringConvertr"})
    assert [error.partition(": ")[0] for error in errors] == [
        "key.converter=Jsn",
        "value.converter=no.such:Thing",
        "header.converter=StringConvertr",
    ]
    assert "Did you mean StringConverter?" in errors[2]


def test_a_converters_own_keys_are_checked() -> None:
    [error] = check({**GOOD, "value.converter.schemas.enable": "perhaps"})
    assert error.startswith("value.converter=org.apache.kafka.connect.json.JsonConverter: ")
    assert "schemas.enable" in error
