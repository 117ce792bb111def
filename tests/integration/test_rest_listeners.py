"""Tests of the REST listeners of a real worker: https with PEM keys, separate admin listeners, response headers."""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from support.ports import free_port
from support.worker import Worker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a PEM file with a self-signed certificate for 127.0.0.1 and the private key; return the file's path."""
    directory = tmp_path_factory.mktemp("pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=headrace"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"]
    subprocess.run([*command.split(), *files], check=True, capture_output=True, cwd=directory)
    both = directory / "both.pem"
    both.write_text((directory / "key.pem").read_text() + (directory / "certificate.pem").read_text())
    return both


def get(url: str, pem: Path | None = None, *, identify: bool = False) -> tuple[Any, Any]:
    context = None if pem is None else ssl.create_default_context(cafile=str(pem))
    if context is not None and identify:
        context.load_cert_chain(str(pem))
    with urllib.request.urlopen(url, timeout=20, context=context) as response:
        return json.load(response), response.headers


def test_admin_endpoints_and_response_headers_follow_the_configuration(tmp_path: Path) -> None:
    admin = f"http://127.0.0.1:{free_port()}"
    settings = {"admin.listeners": admin, "response.http.headers.config": '"set Cache-Control: no-cache, no-store"'}
    with Worker(tmp_path, settings) as worker:
        loggers, headers = get(f"{admin}/admin/loggers")
        assert "root" in loggers
        assert "Cache-Control" not in headers, "as in Kafka Connect, only the main listeners add headers"
        names, headers = get(f"{worker.url}/connectors")
        assert names == []
        assert headers["Cache-Control"] == "no-cache, no-store"
        for nowhere in (f"{worker.url}/admin/loggers", f"{admin}/connectors"):
            with pytest.raises(urllib.error.HTTPError) as error:
                get(nowhere)
            assert error.value.code == 404
            assert error.value.headers["Cache-Control"] == (None if nowhere.startswith(admin) else "no-cache, no-store")
            error.value.close()


def test_worker_serves_https_and_http_listeners_at_the_same_time(tmp_path: Path, pem: Path) -> None:
    plain, secure = (f"{scheme}://127.0.0.1:{free_port()}" for scheme in ("http", "https"))
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pem)}
    worker = Worker(tmp_path, settings)
    worker.settings["listeners"] = f"{plain},{secure}"
    worker.url = plain
    with worker:
        assert get(f"{secure}/connectors", pem)[0] == []
        assert get(f"{plain}/connectors")[0] == []
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{secure}/connectors", timeout=20)


def test_client_certificate_is_required_if_configured(tmp_path: Path, pem: Path) -> None:
    plain, secure = (f"{scheme}://127.0.0.1:{free_port()}" for scheme in ("http", "https"))
    text = pem.read_text()
    end = text.index("-----BEGIN CERTIFICATE")
    settings = {
        "admin.listeners": secure,
        "admin.listeners.https.ssl.keystore.type": "PEM",
        "admin.listeners.https.ssl.keystore.key": text[:end].strip().replace("\n", "\\n"),
        "admin.listeners.https.ssl.keystore.certificate.chain": text[end:].strip().replace("\n", "\\n"),
        "admin.listeners.https.ssl.client.auth": "required",
        "admin.listeners.https.ssl.truststore.type": "PEM",
        "admin.listeners.https.ssl.truststore.location": str(pem),
        "listeners": plain,
    }
    with Worker(tmp_path, settings) as worker:
        assert "root" in get(f"{secure}/admin/loggers", pem, identify=True)[0]
        with pytest.raises((urllib.error.URLError, ConnectionError, ssl.SSLError)):
            get(f"{secure}/admin/loggers", pem)
        assert text[:end].strip().splitlines()[1] not in worker.log()


@pytest.mark.parametrize(
    ("content", "message"), [(None, "none.pem: No such file or directory"), ("nothing", "cannot load the key")]
)
def test_unusable_tls_key_is_reported_in_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "none.pem"
    if content is not None:
        file.write_text(content)
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}
    worker = Worker(tmp_path, {**settings, "listeners": f"https://127.0.0.1:{free_port()}"})
    result = subprocess.run(worker.command(), capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 2
    assert "listeners: cannot load the key or certificates" in result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
