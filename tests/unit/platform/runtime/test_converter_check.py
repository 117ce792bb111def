"""Tests that errors in the configuration of a worker's converters name the configuration key."""

from __future__ import annotations

from headrace.runtime.converter_check import check

GOOD = {"key.converter": "StringConverter", "value.converter": "org.apache.kafka.connect.json.JsonConverter"}


def test_worker_with_valid_converters_has_no_converter_errors() -> None:
    assert check({**GOOD, "value.converter.schemas.enable": "false"}) == []


def test_each_unknown_converter_class_of_the_worker_is_reported_with_its_key() -> None:
    errors = check({"key.converter": "Jsn", "value.converter": "no.such:Thing", "header.converter": "StringConvertr"})
    assert [error.partition(": ")[0] for error in errors] == [
        "key.converter=Jsn",
        "value.converter=no.such:Thing",
        "header.converter=StringConvertr",
    ]
    assert "Did you mean StringConverter?" in errors[2]


def test_invalid_configuration_of_a_worker_converter_is_reported_with_the_converter_key() -> None:
    [error] = check({**GOOD, "value.converter.schemas.enable": "perhaps"})
    assert error.startswith("value.converter=org.apache.kafka.connect.json.JsonConverter: ")
    assert "schemas.enable" in error


def test_unknown_config_provider_class_of_the_worker_is_reported() -> None:
    [error] = check({**GOOD, "config.providers": "vault", "config.providers.vault.class": "Vault"})
    assert error.startswith("config.providers=vault: ")
    assert "which name matches Vault" in error
