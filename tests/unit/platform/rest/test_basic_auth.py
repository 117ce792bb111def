"""Tests of basic authentication: the Authorization header, and the sources of users and passwords."""

from __future__ import annotations

import base64
import logging
from pathlib import Path

import pytest

from headrace.rest.basic_auth import LOGIN_MODULE, Authenticator, create_authenticator, parse_header
from headrace.runtime.worker_config import WorkerConfig

CLASS = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
MINIMUM = {"key.converter": "K", "value.converter": "V"}


def basic(text: str, scheme: str = "Basic") -> str:
    return f"{scheme} {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize(
    ("header", "credentials"),
    [
        (basic("alice:secret"), ("alice", "secret")),
        (basic("alice:secret", "bAsIc"), ("alice", "secret")),
        (basic("alice:"), ("alice", "")),
        (basic("bob:p:w"), ("bob", "p:w")),
        (basic("zoë:ü"), ("zoë", "ü")),
        (basic("alice:secret").rstrip("="), ("alice", "secret")),
        (None, (None, "")),
        ("", (None, "")),
        ("Basic", (None, "")),
        ("Bearer abc", (None, "")),
        ("Basic !!!", (None, "")),
        ("Basic ü", (None, "")),
        (basic(":secret"), (None, "secret")),
    ],
)
def test_basic_authorization_header_is_parsed_to_user_and_password(
    header: str | None, credentials: tuple[str | None, str]
) -> None:
    assert parse_header(header) == credentials


def test_request_with_user_and_password_from_any_of_several_users_files_is_accepted() -> None:
    authenticator = Authenticator([{"alice": "secret"}, {"bob": "p:w", "alice": "other"}])
    for text, is_accepted in {
        "alice:secret": True, "alice:other": True, "bob:p:w": True, "alice:p:w": False, "bob:p": False, "carol:": False,
        "alice:": False, "alice:Secret": False,
    }.items():  # fmt: skip
        assert authenticator.accepts(basic(text)) is is_accepted, text
    assert not authenticator.accepts(None)


def test_empty_users_file_permits_all_requests() -> None:
    assert Authenticator([{}]).accepts(None)
    assert not Authenticator([]).accepts(basic("a:b"))


def config(**more: str) -> WorkerConfig:
    given = {key.replace("_", "."): value for key, value in more.items()}
    return WorkerConfig.standalone({**MINIMUM, "rest.extension.classes": CLASS, **given})


def test_users_are_read_from_the_configured_users_file(tmp_path: Path) -> None:
    file = tmp_path / "users"
    file.write_bytes(b"alice: s\\u00e9cret\nbob=\xe9\n# comment\n")  # ISO 8859-1, as in Java
    created = create_authenticator(config(rest_basic_auth_users_file=str(file)), {})
    assert created is not None
    assert created.accepts(basic("alice:sécret"))
    assert created.accepts(basic("bob:é"))
    assert not created.accepts(basic("bob:e"))


@pytest.mark.parametrize("section", ["KafkaConnect", "other"])
@pytest.mark.parametrize("variable", ["KAFKA_OPTS", "JAVA_TOOL_OPTIONS"])
def test_users_are_read_from_the_users_file_specified_in_the_jaas_file(
    tmp_path: Path, section: str, variable: str
) -> None:
    (tmp_path / "users").write_text("alice=secret\n")
    (tmp_path / "jaas.conf").write_text(f'{section} {{ {LOGIN_MODULE} required file="{tmp_path}/users"; }};')
    environment = {variable: f"-Djava.security.auth.login.config={tmp_path}/jaas.conf"}
    created = create_authenticator(config(), environment)
    assert created is not None
    assert created.accepts(basic("alice:secret"))
    assert not created.accepts(None)


def test_basic_auth_extension_may_be_configured_without_its_package_name(tmp_path: Path) -> None:
    (tmp_path / "users").write_text("alice=secret")
    given = config(rest_basic_auth_users_file=str(tmp_path / "users"), rest_extension_classes=CLASS.rpartition(".")[2])
    assert create_authenticator(given, {}) is not None


def test_worker_without_the_basic_auth_extension_has_no_authenticator() -> None:
    assert create_authenticator(WorkerConfig.standalone(MINIMUM), {}) is None


@pytest.mark.parametrize(
    ("jaas_file", "reason"),
    [
        (None, "set rest.basic.auth.users.file to a file with lines user=password"),
        ("KafkaClient { a.B required; };", "the section KafkaConnect is missing"),
        ("KafkaConnect { com.example.LdapLoginModule required; };", "com.example.LdapLoginModule is not supported"),
        (f"KafkaConnect {{ {LOGIN_MODULE} required; }};", "has no option `file`"),
        ("KafkaConnect", "expected {"),
        (f'KafkaConnect {{ {LOGIN_MODULE} required file="/none/users"; }};', "/none/users"),
    ],
)
def test_worker_with_basic_auth_fails_at_startup_if_the_list_of_users_cannot_be_read(
    tmp_path: Path, jaas_file: str | None, reason: str
) -> None:
    environment = {}
    if jaas_file is not None:
        (tmp_path / "jaas.conf").write_text(jaas_file)
        environment["KAFKA_OPTS"] = f"-Djava.security.auth.login.config={tmp_path}/jaas.conf"
    with pytest.raises((ValueError, OSError)) as caught:
        create_authenticator(config(), environment)
    assert reason in str(caught.value)


def test_empty_users_file_causes_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "users").touch()
    with caplog.at_level(logging.WARNING):
        create_authenticator(config(rest_basic_auth_users_file=str(tmp_path / "users")), {})
    assert "is empty: the REST server accepts all requests" in caplog.text
