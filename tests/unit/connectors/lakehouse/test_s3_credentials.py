"""Tests of the S3 credentials: where they come from, when they are renewed, and that nothing shows them."""

from __future__ import annotations

import json
import logging
import pickle
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("boto3")
pytest.importorskip("pyarrow")
from pyarrow import fs

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.s3_access import (
    S3Access,
    arrow_arguments,
    delta_storage_options,
    iceberg_properties,
)
from headrace_connectors.lakehouse.s3_settings import AccessProvider
from headrace_connectors.s3.connection import S3AccessConfig

PROCESS = """
import json, pathlib, sys, time
state = pathlib.Path(sys.argv[1])
now = json.loads(state.read_text())
state.write_text(json.dumps({**now, "calls": now["calls"] + 1}))
expiration = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + now["valid_s"]))
print(json.dumps({"Version": 1, "AccessKeyId": f"key-{now['calls']}", "SecretAccessKey": "hidden-secret",
                  "SessionToken": "hidden-token", "Expiration": expiration}))
"""


class CredentialProcess:
    """A program that issues temporary credentials, in AWS's format of `credential_process`."""

    def __init__(self, directory: Path) -> None:
        self._state = directory / "state.json"
        (directory / "program.py").write_text(PROCESS)
        program = f"{sys.executable} {directory / 'program.py'} {self._state}"
        (directory / "config").write_text(f"[default]\ncredential_process = {program}\n")
        self.set(3600)

    def set(self, valid_s: float) -> None:
        """Set for how long the next credentials are valid."""
        self._state.write_text(json.dumps({"calls": 0, "valid_s": valid_s} | self._read() | {"valid_s": valid_s}))

    def calls(self) -> int:
        return int(self._read()["calls"])

    def _read(self) -> dict[str, float]:
        return dict(json.loads(self._state.read_text())) if self._state.exists() else {}


@pytest.fixture
def aws_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of AWS's configuration files. The environment has no credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def config(**keys: str) -> S3AccessConfig:
    return S3AccessConfig.parse({name.replace("__", "."): text for name, text in keys.items()})


KEYS = {"aws__access__key__id": "key", "aws__secret__access__key": "hidden-secret"}


def test_configured_credentials_are_used_with_the_store_the_proxy_and_the_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "ca.pem")
    access = AccessProvider(
        config(
            **KEYS,
            store__url="http://store:9000",
            s3__region="eu-west-1",
            s3__proxy__url="proxy:3128",
            s3__proxy__user="me",
            s3__proxy__password="a/b",
            s3__path__style__access__enabled="false",
        )
    ).current(3600)
    assert access == S3Access("key", "hidden-secret", None, None, "eu-west-1", "http://store:9000", False, "ca.pem",
                              "http://me:a%2Fb@proxy:3128")  # fmt: skip


def test_temporary_credentials_are_renewed_only_if_they_expire_within_the_job(
    aws_files: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = CredentialProcess(aws_files)
    now = time.time()
    provider = AccessProvider(config(), clock=lambda: now)
    first = provider.current(600)
    assert (first.access_key, first.session_token) == ("key-0", "hidden-token")
    assert first.expires_ms is not None
    assert 3500 < first.expires_ms / 1000 - now < 3700
    assert provider.current(3000) is first
    now += 200
    assert provider.current(3000) is first
    process.set(7200)
    assert provider.current(3500).access_key == "key-1"
    assert provider.current(6000).access_key == "key-1"
    assert not caplog.records
    assert provider.current(8000).access_key == "key-2"  # the provider issues no credentials that are valid longer
    assert "S3 credentials expire in" in caplog.text


def test_credentials_that_were_found_are_searched_again_after_five_minutes(aws_files: Path) -> None:
    now = time.time()
    provider = AccessProvider(config(), clock=lambda: now)
    for key in ("first", "second"):
        text = f"[default]\naws_access_key_id = {key}\naws_secret_access_key = hidden-secret\n"
        (aws_files / "credentials").write_text(text)
        assert provider.current().access_key == key
        (aws_files / "credentials").write_text(text.replace(key, "other"))
        now += 290
        assert provider.current().access_key == key
        now += 20


def test_expired_credentials_are_an_error(aws_files: Path) -> None:
    CredentialProcess(aws_files)
    now = time.time() + 4000
    with pytest.raises(ConnectError, match="the S3 credentials have expired"):
        AccessProvider(config(), clock=lambda: now).current()


def test_missing_credentials_are_an_error_that_names_the_keys(aws_files: Path) -> None:
    with pytest.raises(ConnectError, match=r"there are no S3 credentials; set aws\.access\.key\.id"):
        AccessProvider(config()).current()


def test_program_that_issues_no_credentials_is_an_error(aws_files: Path) -> None:
    (aws_files / "config").write_text("[default]\ncredential_process = false\n")
    with pytest.raises(ConnectError, match="S3 credentials cannot be obtained"):
        AccessProvider(config()).current()


def test_no_log_line_and_no_representation_shows_secrets(aws_files: Path, caplog: pytest.LogCaptureFixture) -> None:
    CredentialProcess(aws_files)
    with caplog.at_level(logging.DEBUG):
        access = AccessProvider(config(store__url="http://127.0.0.1:1")).current(10_000)
        store = pickle.loads(pickle.dumps(FileStore(access)))
        with pytest.raises(OSError, match="test/f") as error:
            store.size("s3://lake/test", "f")
    assert store.access == access
    assert caplog.records
    for text in (caplog.text, repr(access), str(access), repr(store), f"{store}", str(error.value)):
        assert "hidden" not in text
        assert "key-0" not in text


ACCESS = S3Access(
    "key", "hidden-secret", "token", 1, "eu-west-1", "http://store:9000/base/", False, "ca.pem", "http://p:1"
)
AWS = S3Access("key", "hidden-secret", region="eu-west-1")


def test_options_of_pyarrow_delta_and_iceberg_have_all_settings() -> None:
    assert arrow_arguments(ACCESS) == {
        "access_key": "key",
        "secret_key": "hidden-secret",
        "session_token": "token",
        "region": "eu-west-1",
        "scheme": "http",
        "endpoint_override": "store:9000/base",
        "force_virtual_addressing": True,
        "tls_ca_file_path": "ca.pem",
        "proxy_options": "http://p:1",
        "connect_timeout": 10,
        "request_timeout": 60,
        "allow_delayed_open": True,
    }
    assert delta_storage_options(ACCESS) == {
        "aws_access_key_id": "key",
        "aws_secret_access_key": "hidden-secret",
        "aws_session_token": "token",
        "aws_region": "eu-west-1",
        "aws_endpoint": "http://store:9000/base/",
        "aws_allow_http": "true",
        "aws_virtual_hosted_style_request": "true",
        "aws_conditional_put": "etag",
        "proxy_url": "http://p:1",
        "connect_timeout": "10s",
        "retry_timeout": "60s",
    }
    assert iceberg_properties(ACCESS) == {
        "s3.access-key-id": "key",
        "s3.secret-access-key": "hidden-secret",
        "s3.session-token": "token",
        "s3.region": "eu-west-1",
        "s3.endpoint": "http://store:9000/base/",
        "s3.force-virtual-addressing": "true",
        "s3.proxy-uri": "http://p:1",
        "headrace.s3.ca-file": "ca.pem",
        "s3.connect-timeout": "10",
    }


def test_options_for_aws_have_no_endpoint() -> None:
    assert not {"endpoint_override", "scheme", "session_token", "tls_ca_file_path"} & arrow_arguments(AWS).keys()
    assert not {"aws_endpoint", "aws_allow_http", "aws_session_token"} & delta_storage_options(AWS).keys()
    assert not {"s3.endpoint", "s3.session-token"} & iceberg_properties(AWS).keys()
    fs.S3FileSystem(**arrow_arguments(AWS))  # PyArrow accepts the arguments
    fs.S3FileSystem(**arrow_arguments(ACCESS) | {"tls_ca_file_path": None})
