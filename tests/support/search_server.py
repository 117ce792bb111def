"""Runs OpenSearch or Elasticsearch for tests, on a free loopback port. Maven downloads the server to build/."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from support.certificates import Certificates
from support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
OPENSEARCH = "org.opensearch.distribution.integ-test-zip:opensearch:2.19.6:zip"
OPENSEARCH_WITH_SECURITY = "org.opensearch.distribution.integ-test-zip:opensearch:2.19.4:zip"
_SECURITY_PLUGIN = "org.opensearch.plugin:opensearch-security:2.19.4.0:zip"
# This distribution contains the modules x-pack-core and x-pack-security.
ELASTICSEARCH = "org.elasticsearch.distribution.integ-test-zip:elasticsearch:8.19.21:zip"
_EMAIL_ANALYSIS = Path(__file__).with_name("EmailAnalysis.java")
# A flag for tests. The server needs half of the CPU time to start without the optimizing compiler (C2).
SHORT_RUN_FLAGS = ("-XX:TieredStopAtLevel=1",)
_START_S = 120.0
_CERTIFICATE_START = "-----BEGIN CERTIFICATE"
_BCRYPT_ADMIN = "$2a$04$headraceheadraceheadrec5M/DPIVFIzkEEIeFcz5jOaA6Q7RdAq"
"""The bcrypt hash of the password admin."""


class ServerProcess:
    """The process of a server."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self._command, self._directory, self._environment = command, directory, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "server.log"

    def start(self) -> None:
        """Start the process without waiting until the server responds."""
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self._directory, env=self._environment, stdout=output, stderr=output,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def stop(self) -> None:
        """Stop the process with SIGTERM, and wait until it has exited."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(timeout=60)

    def kill(self) -> None:
        """Stop the process with SIGKILL, and wait until it has exited."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=60)

    def suspend(self) -> None:
        """Suspend the process with SIGSTOP. The server then accepts connections but sends no responses."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the suspended process with SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def is_running(self) -> bool:
        """Return whether the process has not exited."""
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        """Return the end of the server's log."""
        return self._log.read_text()[-4000:]


@dataclass(frozen=True, slots=True)
class SearchServer:
    """A running OpenSearch or Elasticsearch server."""

    url: str
    authorization: str | None = None
    tls: ssl.SSLContext | None = None
    process: ServerProcess | None = None

    def kill(self) -> None:
        """Stop the server's process with SIGKILL. The server keeps its data."""
        assert self.process is not None
        self.process.kill()

    def suspend(self) -> None:
        """Suspend the server's process. The server then accepts connections but sends no responses."""
        assert self.process is not None
        self.process.suspend()

    def resume(self) -> None:
        """Resume the suspended server's process."""
        assert self.process is not None
        self.process.resume()

    def start_again(self) -> None:
        """Start the killed server with its data and its port, and wait until it responds."""
        assert self.process is not None
        self.process.start()
        _wait(self)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request. Return the decoded response. Raises urllib.error.HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60, context=self.tls) as response:
            return json.loads(response.read() or b"null")

    def documents(self, index: str) -> dict[str, Any]:
        """Return all documents of an index, data stream or alias, by document id."""
        self.request("POST", f"/{index}/_refresh")
        found: dict[str, Any] = {}
        page = self.request("POST", f"/{index}/_search?scroll=1m", {"size": 10000, "sort": ["_doc"]})
        while page["hits"]["hits"]:
            found |= {hit["_id"]: hit["_source"] for hit in page["hits"]["hits"]}
            page = self.request("POST", "/_search/scroll", {"scroll": "1m", "scroll_id": page["_scroll_id"]})
        return found

    def indexes(self) -> list[str]:
        """Return the names of all indexes."""
        return sorted(self.request("GET", "/_all/_settings"))

    def clear(self) -> None:
        """Delete all indexes except those that belong to data streams."""
        for name in self.indexes():
            if not name.startswith(".ds-"):
                self.request("DELETE", f"/{name}")

    def delete_data_stream(self, name: str, template: str) -> None:
        """Delete a data stream and its template. If the server cannot delete data streams, do nothing.

        The Elasticsearch distribution of these tests creates data streams, but has no API that deletes them. Each test
        must therefore use a different name.
        """
        try:
            self.request("DELETE", f"/_data_stream/{name}")
        except urllib.error.HTTPError as error:
            if error.code != 405:
                raise
            return
        self.request("DELETE", f"/_index_template/{template}")


def unavailable_reason() -> str | None:
    """Return why no server can run on this machine, or None if it can."""
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            return f"{program} is not on the path: running OpenSearch or Elasticsearch needs Maven and Java 17"
    return None


def _fetch(artifact: str) -> Path:
    _, name, version, _ = artifact.split(":")
    directory = ROOT / "build" / "search-servers"
    file = directory / f"{name}-{version}.zip"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={directory}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"Maven could not fetch {artifact}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return file


@contextmanager
def running(artifact: str = OPENSEARCH, *, flags: Sequence[str] = (), **settings: str) -> Iterator[SearchServer]:
    """Run the server of a Maven artifact with additional JVM flags. At the end, stop it and remove its data."""
    with _running(artifact, flags, lambda _: settings, SearchServer("http://127.0.0.1")) as server:
        yield server


@contextmanager
def running_opensearch_with_security(certificates: Certificates) -> Iterator[SearchServer]:
    """Run OpenSearch with its security plug-in: https, client certificates, and the user admin (password admin)."""

    def secure(home: Path) -> dict[str, str]:
        plugin = _fetch(_SECURITY_PLUGIN).as_uri()
        command = [str(home / "bin" / "opensearch-plugin"), "install", "--batch", plugin]
        subprocess.run(command, env=_environment("OPENSEARCH", SHORT_RUN_FLAGS), check=True, stdout=subprocess.DEVNULL)
        settings = {
            "plugins__security__ssl__http__enabled": "true",
            "plugins__security__ssl__http__clientauth_mode": "REQUIRE",
            "plugins__security__allow_default_init_securityindex": "true",
            "plugins__security__restapi__roles_enabled": '["all_access"]',
        }
        files = {
            "pemkey": _write_server_key(home, certificates),
            "pemcert": _write_server_certificate(home, certificates),
            "pemtrustedcas": _write(home, "authority.pem", certificates.authority.read_text()),
        }
        for name, file in files.items():
            for layer in ("http", "transport"):
                settings[f"plugins__security__ssl__{layer}__{name}_filepath"] = file
        return settings

    client = _admin(certificates, identify=True)
    with _running(OPENSEARCH_WITH_SECURITY, SHORT_RUN_FLAGS, secure, client) as server:
        yield server


@contextmanager
def running_elasticsearch_with_security(certificates: Certificates) -> Iterator[SearchServer]:
    """Run Elasticsearch with its security features: https, API keys, and the user admin (password admin)."""

    def secure(home: Path) -> dict[str, str]:
        _install_email_analysis(home)
        _write(home, "users", f"admin:{_BCRYPT_ADMIN}\n")
        _write(home, "users_roles", "superuser:admin\n")
        return {
            "xpack__security__enabled": "true",
            "xpack__security__http__ssl__enabled": "true",
            "xpack__security__http__ssl__key": _write_server_key(home, certificates),
            "xpack__security__http__ssl__certificate": _write_server_certificate(home, certificates),
        }

    with _running(ELASTICSEARCH, SHORT_RUN_FLAGS, secure, _admin(certificates, identify=False)) as server:
        yield server


def _install_email_analysis(home: Path) -> None:
    """Compile and install the plug-in EmailAnalysis, which the analyzer of the index .security needs."""
    directory = home / "plugins" / "email-analysis"
    classes = home / "email-analysis-classes"
    command = ["javac", "--release", "17", "-cp", str(home / "lib" / "*"), "-d", str(classes), str(_EMAIL_ANALYSIS)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    directory.mkdir()
    with zipfile.ZipFile(directory / "email-analysis.jar", "w") as jar:
        for file in classes.rglob("*.class"):
            jar.write(file, file.relative_to(classes))
    version = ELASTICSEARCH.split(":")[2]
    descriptor = {
        "name": "email-analysis",
        "description": "Components of the analyzer for email addresses",
        "version": "1",
        "elasticsearch.version": version,
        "java.version": "17",
    }
    text = "".join(f"{key}={value}\n" for key, value in descriptor.items())
    (directory / "stable-plugin-descriptor.properties").write_text(text)
    prefix, api = "headrace.tests.EmailAnalysis$", "org.elasticsearch.plugin.analysis"
    components = {
        f"{api}.TokenizerFactory": {"uax_url_email": f"{prefix}UrlEmailTokenizer"},
        f"{api}.TokenFilterFactory": {
            "pattern_capture": f"{prefix}PatternCaptureFilter",
            "unique": f"{prefix}UniqueFilter",
        },
    }
    (directory / "named_components.json").write_text(json.dumps(components))


def _admin(certificates: Certificates, *, identify: bool) -> SearchServer:
    """Return a SearchServer that sends requests as the user admin, with a client certificate if `identify` is True."""
    authorization = f"Basic {base64.b64encode(b'admin:admin').decode()}"
    return SearchServer("https://127.0.0.1", authorization, certificates.client_context(identify=identify))


def _write_server_key(home: Path, certificates: Certificates) -> str:
    return _write(home, "server.key", certificates.server.read_text().partition(_CERTIFICATE_START)[0])


def _write_server_certificate(home: Path, certificates: Certificates) -> str:
    _, start, text = certificates.server.read_text().partition(_CERTIFICATE_START)
    return _write(home, "server.crt", start + text)


def _write(home: Path, name: str, text: str) -> str:
    """Write a file in the server's configuration directory. Return its name."""
    (home / "config" / name).write_text(text)
    return name


@contextmanager
def _running(
    artifact: str, flags: Sequence[str], configure: Callable[[Path], Mapping[str, str]], client: SearchServer
) -> Iterator[SearchServer]:
    """Run a server, and yield `client` with the server's port added to its URL.

    `configure` prepares the server's home directory and returns additional settings.
    """
    directory = Path(mkdtemp(prefix="headrace-search-"))
    try:
        with zipfile.ZipFile(_fetch(artifact)) as archive:
            archive.extractall(directory)
        (home,) = directory.iterdir()
        is_opensearch = "opensearch" in artifact
        port, transport_port = free_ports(2)
        config = {
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": str(port),
            "transport.port": str(transport_port),
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **({} if is_opensearch else {"xpack.security.enabled": "false"}),
        }
        program = "opensearch" if is_opensearch else "elasticsearch"
        for file in (home / "bin").iterdir():
            file.chmod(0o755)
        config |= {key.replace("__", "."): value for key, value in configure(home).items()}
        (home / "config" / f"{program}.yml").write_text("".join(f"{key}: {value}\n" for key, value in config.items()))
        environment = _environment(program.upper() if is_opensearch else "ES", flags)
        command = [str(home / "bin" / program)]
        if os.geteuid() == 0:  # both servers refuse to run as root
            subprocess.run(["chown", "-R", "nobody:nogroup", str(directory)], check=True)
            command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command]
        process = ServerProcess(command, directory, environment)
        process.start()
        try:
            server = replace(client, url=f"{client.url}:{port}", process=process)
            _wait(server)
            yield server
        finally:
            process.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _environment(prefix: str, flags: Sequence[str] = ()) -> dict[str, str]:
    java = Path(shutil.which("java") or "").resolve().parents[1]
    return {
        **os.environ,
        f"{prefix}_JAVA_HOME": str(java),
        f"{prefix}_JAVA_OPTS": " ".join(("-Xms512m", "-Xmx512m", *flags)),
    }


def _wait(server: SearchServer) -> None:
    assert server.process is not None
    deadline = time.monotonic() + _START_S
    while True:
        try:
            server.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=30s")
            return
        except OSError:  # urllib's errors are OSErrors
            if not server.process.is_running() or time.monotonic() > deadline:
                raise RuntimeError(f"The server did not start: {server.process.log()}") from None
            time.sleep(0.2)
