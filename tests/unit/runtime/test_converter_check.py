"""Tests that errors in the configuration of a worker's converters contain the configuration key."""

from __future__ import annotations

from headrace.runtime.converter_check import check

GOOD = {"key.converter": "StringConverter", "value.converter": "org.apache.kafka.connect.json.JsonConverter"}


def test_valid_converters_have_no_errors() -> None:
    assert check({**GOOD, "value.converter.schemas.enable": "false"}) == []


def test_each_invalid_converter_is_reported() -> None:
    errors = check({"key.converter": "Jsn", "value.converter": "no.such:Thing", "header.converter": "StringConvertr"})
    assert [error.partition(": ")[0] for error in errors] == [
        "key.converter=Jsn",
        "value.converter=no.such:Thing",
        "header.converter=StringConvertr",
    ]
    assert "Did you mean StringConverter?" in errors[2]


def test_configuration_of_each_converter_is_validated() -> None:
    [error] = check({**GOOD, "value.converter.schemas.enable": "perhaps"})
    assert error.startswith("value.converter=org.apache.kafka.connect.json.JsonConverter: ")
    assert "schemas.enable" in error


def test_invalid_config_provider_is_reported() -> None:
    [error] = check({**GOOD, "config.providers": "vault", "config.providers.vault.class": "Vault"})
    assert error.startswith("config.providers=vault: ")
    assert "which name matches Vault" in error
