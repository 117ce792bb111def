"""Tests that errors in the configuration of a worker's converters name the configuration key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.cli.worker_process import worker_config
from headrace.metrics import logs
from headrace.runtime.converter_check import ConverterCheck, check
from headrace.runtime.worker_config import WorkerConfig

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


def test_error_contains_the_variable_instead_of_its_value() -> None:
    originals = {**GOOD, "value.converter.schemas.enable": "${env:ENABLED}"}
    [error] = check({**GOOD, "value.converter.schemas.enable": "resolved-value"}, originals)
    assert "resolved-value" not in error
    assert "Invalid value ${env:ENABLED} for configuration schemas.enable" in error
    [error] = check({**GOOD, "key.converter": "resolved-class"}, {**GOOD, "key.converter": "${env:CLASS}"})
    assert error.startswith("key.converter=${env:CLASS}: ")
    assert "resolved-class" not in error


def test_check_process_reports_the_variables_of_the_worker_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLED", "resolved-value")
    originals = {
        **GOOD,
        "bootstrap.servers": "localhost:1",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
        "config.providers": "env",
        "config.providers.env.class": "EnvVarConfigProvider",
        "value.converter.schemas.enable": "${env:ENABLED}",
    }
    file = tmp_path / "worker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in originals.items()))
    config = worker_config(file, {}, WorkerConfig.standalone)
    assert config.properties["value.converter.schemas.enable"] == "resolved-value"
    check = ConverterCheck(config)
    try:
        [error] = asyncio.run(check.errors(60))
    finally:
        check.kill()
    assert "${env:ENABLED}" in error
    assert "resolved-value" not in error


SECRET_CONVERTER = """
from headrace.api import Config, Converter, Password, key

class RegistryConfig(Config):
    user_info: Password = key("basic.auth.user.info")

class RegistryConverter(Converter[RegistryConfig]):
    def configure(self, config):
        raise ValueError(f"the registry rejects {config.user_info.value}")
"""


def test_error_contains_no_value_of_a_password_of_the_converter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "secrets", logs.Secrets())
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "acme_registry_converter.py").write_text(SECRET_CONVERTER)
    name = "acme_registry_converter:RegistryConverter"
    [error] = check({**GOOD, "value.converter": name, "value.converter.basic.auth.user.info": "ada:open-sesame"})
    assert error == f"value.converter={name}: the registry rejects {logs.MASK}"
