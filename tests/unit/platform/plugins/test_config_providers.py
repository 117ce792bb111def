from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.api import Config, ConfigData, ConfigProvider
from headrace.api.errors import ConfigError, ConnectError
from headrace.plugins.variables import ConfigResolver, VariableRestorer, resolve_worker

JAVA = "org.apache.kafka.common.config.provider."


def resolver_of(**worker: str) -> ConfigResolver:
    names = {"f": "FileConfigProvider", "d": "DirectoryConfigProvider", "env": "EnvVarConfigProvider"}
    settings = {"config.providers": ", ".join(names)}
    settings |= {f"config.providers.{name}.class": JAVA + class_name for name, class_name in names.items()}
    settings |= {f"config.providers.{key.replace('__', '.param.').replace('_', '.')}": v for key, v in worker.items()}
    return ConfigResolver.from_worker(settings)


def resolve(properties: dict[str, str], **worker: str) -> dict[str, str]:
    with resolver_of(**worker) as resolver:
        return resolver.resolve(properties)


def test_file_config_provider_reads_properties_files(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("user = bob\npass\\ word=s\\u00e9cret\nempty=\n", encoding="utf-8")
    assert resolve({"a": f"${{f:{path}:user}}/${{f:{path}:pass word}}", "b": f"[${{f:{path}:empty}}]"}) == {
        "a": "bob/sécret",
        "b": "[]",
    }
    missing = f"${{f:{path}:nope}}"
    assert resolve({"a": missing}) == {"a": missing}


def test_error_of_a_config_provider_names_the_configuration_key_and_the_variable(tmp_path: Path) -> None:
    variable = f"${{f:{tmp_path / 'none'}:x}}"
    expected = f"Invalid value {variable} for configuration db.password: Could not read properties from file"
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        resolve({"db.user": "scott", "db.password": f"x{variable}"})
    assert caught.value.key == "db.password"


def test_resolver_reports_the_key_of_each_unresolved_variable_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "secrets.properties"
    path.write_text("nested=${env:HEADRACE_NOT_SET}\n")
    properties = {
        "a": "x",
        "b": "jdbc:${env:HEADRACE_NOT_SET}/y",
        "c": "${topic}",
        "d": "${vault:x:pw}",
        "e": f"${{f:{path}:nope}}",
        "f": f"${{f:{path}:nested}}",  # the value of a secret contains no variables
    }
    with resolver_of() as resolver:
        resolver.resolve(properties)
    denied = ", or its parameters do not permit access to it"
    assert [str(each) for each in resolver.unresolved] == [
        "b: variable ${env:HEADRACE_NOT_SET} is not resolved: config provider env has no value for key "
        f"HEADRACE_NOT_SET{denied}",
        "d: variable ${vault:x:pw} is not resolved: config.providers in the worker file does not contain vault",
        f"e: variable ${{f:{path}:nope}} is not resolved: config provider f has no value for key nope in {path}"
        f"{denied}",
    ]


def test_directory_config_provider_reads_files_only_in_the_given_directory(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken\n")
    assert resolve({"a": f"${{d:{tmp_path}:token}}"}) == {"a": "t0ken\n"}
    for key in ("none", "../token", "."):
        text = f"${{d:{tmp_path}:{key}}}"
        assert resolve({"a": text}) == {"a": text}


def test_env_var_config_provider_reads_only_allowed_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_DIR", "/data")
    monkeypatch.setenv("HEADRACE_TEST_HIDDEN", "x")
    properties = {"file": "${env:HEADRACE_TEST_DIR}/a", "b": "${env:HEADRACE_TEST_HIDDEN}"}
    assert resolve(properties) == {"file": "/data/a", "b": "x"}
    assert resolve(properties, env__allowlist_pattern=".*DIR") == {"file": "/data/a", "b": properties["b"]}
    with pytest.raises(ConfigError, match="Path is not supported"):
        resolve({"a": "${env:path:HOME}"})


def test_variables_that_cannot_be_resolved_are_left_unchanged() -> None:
    properties = {"a": "${unknown:x}", "b": "${env}", "c": "$env:HOME", "d": "${env:HEADRACE_NO_SUCH_VARIABLE}"}
    assert resolve(properties) == properties


def test_variables_inside_values_from_a_config_provider_are_not_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_OUTER", "${env:HOME}")
    assert resolve({"a": "${env:HEADRACE_TEST_OUTER}"}) == {"a": "${env:HOME}"}


def test_config_providers_read_files_only_in_allowed_paths(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    for directory in (inside, outside):
        directory.mkdir()
        (directory / "s.properties").write_text("k=v")
    (inside / "link.properties").symlink_to(outside / "s.properties")
    allowed = {"f__allowed_paths": str(inside), "d__allowed_paths": str(inside)}
    assert resolve({"a": f"${{f:{inside}/s.properties:k}}"}, **allowed) == {"a": "v"}
    for text in (
        f"${{f:{outside}/s.properties:k}}",
        f"${{f:{inside}/../out/s.properties:k}}",
        f"${{f:{inside}/link.properties:k}}",
        f"${{d:{outside}:s.properties}}",
        f"${{d:{inside}:link.properties}}",
    ):
        assert resolve({"a": text}, **allowed) == {"a": text}
    assert "is not permitted to be accessed" in caplog.text
    with pytest.raises(ConfigError, match="must be absolute and exist"):
        resolve({}, f__allowed_paths="relative")


def test_values_from_config_providers_are_collected_for_masking_in_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TEST_SECRET", "hunter2")
    settings = {"config.providers": "env", "config.providers.env.class": JAVA + "EnvVarConfigProvider"}
    with ConfigResolver.from_worker(settings) as resolver:
        resolver.resolve({"a": "user:${env:HEADRACE_TEST_SECRET}", "b": "plain"})
        assert resolver.resolved_values == {"hunter2"}
    worker = {**settings, "key": "${env:HEADRACE_TEST_SECRET}", "plugin.path": "${env:HEADRACE_TEST_SECRET}"}
    resolved, _ = resolve_worker(worker)
    assert (resolved["key"], resolved["plugin.path"]) == ("hunter2", "${env:HEADRACE_TEST_SECRET}")


def test_config_provider_with_a_missing_or_unknown_class_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"config\.providers\.x\.class"):
        ConfigResolver.from_worker({"config.providers": "x"})
    with pytest.raises(ConnectError, match="which name matches Vault"):
        ConfigResolver.from_worker({"config.providers": "x", "config.providers.x.class": "Vault"})


class Lease(ConfigProvider[Config]):
    """A config provider. A variable's key is the time to live of its value in milliseconds, or `forever`."""

    def get(self, path: str, key: str) -> str | ConfigData | None:
        return "v" if key == "forever" else ConfigData("v", int(key))


def test_time_to_live_of_a_resolved_configuration_is_the_shortest_time_to_live_of_its_values() -> None:
    resolver = ConfigResolver({"lease": Lease()})
    assert resolver.resolve({"a": "${lease:forever}"}) == {"a": "v"}
    assert resolver.ttl_ms is None
    assert resolver.resolve({"a": "${lease:500}-${lease:300}", "b": "${lease:400}"}) == {"a": "v-v", "b": "v"}
    assert resolver.ttl_ms == 300


def test_resolved_values_in_a_task_configuration_are_replaced_by_their_config_provider_variables() -> None:
    originals = {"user": "${f:user}", "password": "${f:password}", "topic": "orders", "pin": "${f:pin}"}
    resolved = {"user": "bob", "password": "hunter2", "topic": "orders", "pin": "12"}
    restorer = VariableRestorer(originals, resolved, ["password", "pin"])
    assert restorer.restore(
        {
            "user": "bob",
            "password": "hunter2",
            "topic": "orders",
            "table": "bob",
            "login": "hunter2",
            "url": "db://bob:hunter2@host/12",
            "code": "12",
        }
    ) == {
        "user": "${f:user}",
        "password": "${f:password}",
        "topic": "orders",
        "table": "bob",
        "login": "${f:password}",
        "url": "db://bob:${f:password}@host/12",
        "code": "${f:pin}",
    }


def test_restorer_does_not_replace_a_value_inside_the_text_of_a_variable_that_it_has_inserted() -> None:
    """Each resolved value in the task configuration is replaced by its config provider variable.

    The password is replaced by the variable `${f:/db.properties:a}`. The text of this variable contains `properties`,
    which is the resolved value of the variable `${f:k}`. This text must not change.
    """
    originals = {"password": "${f:/db.properties:a}", "key": "${f:k}"}
    restorer = VariableRestorer(originals, {"password": "hunter2-tiger", "key": "properties"}, ["password", "key"])
    restored = restorer.restore({"url": "db://hunter2-tiger@host/properties"})
    assert restored == {"url": "db://${f:/db.properties:a}@host/${f:k}"}


def test_value_is_not_replaced_by_its_variable_if_the_connector_has_changed_the_value() -> None:
    restorer = VariableRestorer({"tables": "${f:tables}"}, {"tables": "a,b"})
    assert restorer.restore({"tables": "a"}) == {"tables": "a"}
