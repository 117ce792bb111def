"""Tests of the REST listeners of real workers: https, admin listeners, advertised URLs, CORS, response headers.

The expected CORS headers are those of Apache Kafka 4.3.1. test_rest_security_jvm.py checks them against Apache Kafka.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.broker import BrokerProcess, running_broker
from support.certificates import Certificates, create_certificates
from support.distributed import DistributedWorker
from support.ports import free_port
from support.worker import RestError, Worker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a PEM file with a private key and a self-signed certificate for 127.0.0.1. Return the file's path."""
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


def test_only_admin_listeners_serve_admin_endpoints_and_only_main_listeners_send_the_configured_headers(
    tmp_path: Path,
) -> None:
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


def test_https_listener_with_required_client_auth_rejects_clients_without_a_certificate(
    tmp_path: Path, pem: Path
) -> None:
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
def test_worker_with_an_unusable_tls_key_file_exits_with_an_error_without_a_traceback(
    tmp_path: Path, content: str | None, message: str
) -> None:
    file = tmp_path / "none.pem"
    if content is not None:
        file.write_text(content)
    settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(file)}
    worker = Worker(tmp_path, {**settings, "listeners": f"https://127.0.0.1:{free_port()}"})
    result = worker.run()
    assert result.returncode == 2
    assert "listeners: cannot load the key or certificates" in result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_empty_admin_listeners_disable_the_admin_endpoints(tmp_path: Path) -> None:
    with Worker(tmp_path, {"admin.listeners": ""}) as worker:
        with pytest.raises(RestError) as caught:
            worker.request("GET", "/admin/loggers")
        assert caught.value.body == {"error_code": 404, "message": "HTTP 404 Not Found"}
        assert "/admin/loggers" not in worker.request("GET", "/openapi.json")["paths"]


def test_worker_exits_if_admin_listeners_has_the_port_of_another_listener(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.settings["admin.listeners"] = worker.url
    result = worker.run()
    assert result.returncode == 2
    assert f"admin.listeners: cannot bind {worker.url}: Address already in use" in result.stderr


# CORS


def cors(worker: Worker, method: str, path: str, origin: str | None, asked: str | None = None) -> dict[str, str]:
    """Send a request, and return the CORS headers of the response without the prefix Access-Control-.

    If `asked` is given, the request is a preflight request for the method `asked`.
    """
    request = urllib.request.Request(worker.url + path, method=method)
    if origin is not None:
        request.add_header("Origin", origin)
    if asked is not None:
        request.add_header("Access-Control-Request-Method", asked)
        request.add_header("Access-Control-Request-Headers", "content-type")
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            headers = response.headers
    except urllib.error.HTTPError as error:
        with error:
            headers = error.headers
    prefix = "access-control-"
    found = {name.lower().removeprefix(prefix): value for name, value in headers.items() if prefix in name.lower()}
    return found | {"vary": headers["Vary"]}


def test_responses_to_permitted_origins_have_cors_headers(tmp_path: Path) -> None:
    settings = {
        "access.control.allow.origin": "http://example.com,https://.*\\\\.trusted\\\\.org",
        "access.control.allow.methods": "GET,POST,PUT",
        "response.http.headers.config": "add X-Test: one",
    }
    with Worker(tmp_path, settings) as worker:
        for origin in ("http://example.com", "https://x.trusted.org"):
            permitted = {"allow-origin": origin, "vary": "Origin"}
            for method, path in (("GET", "/connectors"), ("GET", "/none"), ("DELETE", "/connectors")):
                assert cors(worker, method, path, origin) == permitted
            assert cors(worker, "OPTIONS", "/connectors/c/config", origin) == permitted
            assert cors(worker, "OPTIONS", "/connectors/c/config", origin, "PUT") == {
                **permitted,
                "allow-methods": "GET,POST,PUT",
                "allow-headers": "Content-Type",
                "max-age": "60",
            }
        for other in ("http://evil.com", "http://example.com.evil.com", "https://trusted.org", "null", None):
            assert cors(worker, "GET", "/connectors", other) == {"vary": "Origin"}
            assert cors(worker, "OPTIONS", "/connectors", other, "PUT") == {"vary": "Origin"}
        assert get(f"{worker.url}/connectors")[1]["X-Test"] == "one"


def test_access_control_allow_origin_star_permits_every_origin_with_the_default_methods(tmp_path: Path) -> None:
    with Worker(tmp_path, {"access.control.allow.origin": "*"}) as worker:
        permitted = {"allow-origin": "http://any", "vary": "Origin"}
        assert cors(worker, "GET", "/connectors", "http://any") == permitted
        preflight = cors(worker, "OPTIONS", "/connectors", "http://any", "DELETE")
        assert preflight == {
            **permitted,
            "allow-methods": "GET,POST,HEAD",
            "allow-headers": "Content-Type",
            "max-age": "60",
        }


# Advertised URLs


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create_certificates(tmp_path_factory.mktemp("certificates"))


def start_group(
    name: str, directory: Path, broker: BrokerProcess, settings: list[dict[str, str]]
) -> list[DistributedWorker]:
    """Return a worker of the group `name` for each item of `settings`. This function does not start the workers."""
    topics = {f"{kind}.storage.topic": f"{name}-{kind}" for kind in ("config", "offset", "status")}
    return [
        DistributedWorker(directory / f"worker-{number}", broker.address, {"group.id": name, **topics, **each})
        for number, each in enumerate(settings)
    ]


def advertised_urls(worker: Worker) -> str:
    return worker.log().partition("advertised URL ")[2].split()[0]


def assert_changes_are_forwarded(workers: list[DistributedWorker], directory: Path) -> None:
    """Check that each worker accepts changes. A worker that is not the leader forwards them to the leader."""
    config = {"connector.class": "FileStreamSource", "file": str(directory / "none"), "topic": "t"}
    for number, worker in enumerate(workers):
        worker.create(f"c{number}", config, initial_state="STOPPED")
        worker.request("DELETE", f"/connectors/c{number}")


def test_workers_forward_requests_to_the_advertised_listener_of_the_leader(
    broker: BrokerProcess, certificates: Certificates, tmp_path: Path
) -> None:
    """Both workers have an http and an https listener. The first worker advertises https, the second http."""
    both = [(free_port(), free_port()) for _ in range(2)]
    settings = [
        {
            "listeners": f"https://127.0.0.1:{secure},http://127.0.0.1:{plain}",
            "rest.advertised.listener": scheme,
            **certificates.settings(),
        }
        for (plain, secure), scheme in zip(both, ("HTTPS", "http"), strict=True)
    ]
    workers = start_group("advertised", tmp_path, broker, settings)
    for worker, (plain, _) in zip(workers, both, strict=True):
        worker.url = f"http://127.0.0.1:{plain}"
    with workers[0], workers[1]:
        assert advertised_urls(workers[0]) == f"https://127.0.0.1:{both[0][1]}/"
        assert advertised_urls(workers[1]) == f"http://127.0.0.1:{both[1][0]}/"
        assert_changes_are_forwarded(workers, tmp_path)


def test_worker_without_a_tls_key_forwards_requests_over_https_to_the_leader(
    broker: BrokerProcess, certificates: Certificates, tmp_path: Path
) -> None:
    """The second worker has no https listener, but trusts the certificate of the first worker."""
    secure = certificates.settings()
    trust = {key: value for key, value in secure.items() if "truststore" in key}
    settings = [{"listeners": f"https://127.0.0.1:{free_port()}", **secure}, trust]
    workers = start_group("mixed", tmp_path, broker, settings)
    workers[0].tls = certificates.client_context(identify=False)
    with workers[0], workers[1]:
        assert_changes_are_forwarded(workers, tmp_path)


def test_forwarding_to_a_leader_with_an_untrusted_certificate_fails(
    broker: BrokerProcess, certificates: Certificates, tmp_path: Path
) -> None:
    settings = [{"listeners": f"https://127.0.0.1:{free_port()}", **certificates.settings()}, {}]
    workers = start_group("untrusted", tmp_path, broker, settings)
    workers[0].tls = certificates.client_context(identify=False)
    with workers[0], workers[1]:
        with pytest.raises(RestError, match="CERTIFICATE_VERIFY_FAILED") as caught:
            workers[1].request("DELETE", "/connectors/c")
        assert caught.value.status == 500
        assert caught.value.body["message"].startswith("IO Error trying to forward REST request to https://127.0.0.1:")


def test_workers_with_wildcard_listeners_advertise_the_local_address_of_their_broker_connection(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    ports = [free_port(), free_port()]
    settings = [{"listeners": f"http://:{ports[0]}"}, {"listeners": f"http://0.0.0.0:{ports[1]}"}]
    workers = start_group("wildcard", tmp_path, broker, settings)
    for worker, port in zip(workers, ports, strict=True):
        worker.url = f"http://127.0.0.1:{port}"
    with workers[0], workers[1]:
        assert [advertised_urls(each) for each in workers] == [f"http://127.0.0.1:{port}/" for port in ports]
        assert_changes_are_forwarded(workers, tmp_path)


def test_rest_advertised_host_name_and_port_replace_host_and_port_of_the_listener(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The second worker connects to the host and port that the leader advertises.

    Usually, a proxy listens on this port. In this test, the port belongs to the leader's second listener.
    """
    first, second = free_port(), free_port()
    settings = {
        "listeners": f"http://127.0.0.1:{first},http://127.0.0.1:{second}",
        "rest.advertised.host.name": "localhost",
        "rest.advertised.port": str(second),
    }
    workers = start_group("proxied", tmp_path, broker, [settings, {}])
    workers[0].url = f"http://127.0.0.1:{first}"
    with workers[0], workers[1]:
        assert advertised_urls(workers[0]) == f"http://localhost:{second}/"
        assert_changes_are_forwarded(workers, tmp_path)
