"""Starts the servers of the connectors' demo on loopback: PostgreSQL, an S3-compatible store (moto) and OpenSearch.

Each function is a context manager that waits until the server responds, and stops and removes it at the end.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

OPENSEARCH = "org.opensearch.distribution.integ-test-zip:opensearch:2.19.6:zip"
DOWNLOADS = Path(__file__).resolve().parents[2] / "build" / "search-servers"
BUCKET = "lake"
START_S = 120.0
_RESPONSE_S = 5.0


class ServerError(Exception):
    """A server cannot be started. The message contains the reason."""


@contextmanager
def postgres() -> Iterator[int]:
    """Run PostgreSQL with the superuser `postgres`, who needs no password; yield its port. Raises ServerError."""
    initdb, control = _postgres_program("initdb"), _postgres_program("pg_ctl")
    directory = Path(mkdtemp(prefix="headrace-demo-postgres-"))
    as_user: list[str] = []
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        shutil.chown(directory, "postgres", "postgres")
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--init-groups"]
    data, port = str(directory / "data"), free_port()
    try:
        _run([*as_user, initdb, "-D", data, "-A", "trust", "-U", "postgres"])
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={directory} -c fsync=off"
        _run([*as_user, control, "-D", data, "-w", "-l", str(directory / "log"), "-o", options, "start"])
        try:
            yield port
        finally:
            _run([*as_user, control, "-D", data, "-w", "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def s3() -> Iterator[int]:
    """Run moto with an empty bucket; yield its port. Raises ServerError."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _process(command, Path(os.devnull), {}) as process:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
        _wait_for_response(request, process, "moto", lambda: "")
        yield port


@contextmanager
def opensearch() -> Iterator[int]:
    """Run OpenSearch from Maven's repository; yield its port. Raises ServerError."""
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            raise ServerError(f"{program} is not on the PATH; OpenSearch needs Maven and Java 17")
    archive = _download(OPENSEARCH)
    directory = Path(mkdtemp(prefix="headrace-demo-opensearch-"))
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(directory)
        (home,) = directory.iterdir()
        for file in (home / "bin").iterdir():
            file.chmod(0o755)
        port = free_port()
        config = {
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": port,
            "transport.port": free_port(),
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        (home / "config" / "opensearch.yml").write_text("".join(f"{key}: {value}\n" for key, value in config.items()))
        command = [str(home / "bin" / "opensearch")]
        if os.geteuid() == 0:  # OpenSearch refuses to run as root
            _run(["chown", "-R", "nobody:nogroup", str(directory)])
            command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *command]
        java = Path(shutil.which("java") or "").resolve().parents[1]
        environment = {"OPENSEARCH_JAVA_HOME": str(java), "OPENSEARCH_JAVA_OPTS": "-Xms512m -Xmx512m"}
        log = directory / "server.log"
        with _process(command, log, environment) as process:
            health = f"http://127.0.0.1:{port}/_cluster/health?wait_for_status=yellow&timeout=3s"
            _wait_for_response(urllib.request.Request(health), process, "OpenSearch", lambda: log.read_text()[-2000:])
            yield port
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _postgres_program(name: str) -> str:
    installed = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), reverse=True)
    found = shutil.which(name) or next(iter(installed), None)
    if found is None:
        raise ServerError("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    return found


def _download(artifact: str) -> Path:
    _, name, version, extension = artifact.split(":")
    file = DOWNLOADS / f"{name}-{version}.{extension}"
    if not file.exists():
        DOWNLOADS.mkdir(parents=True, exist_ok=True)
        _run(["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={DOWNLOADS}"], 600)
    return file


@contextmanager
def _process(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that Ctrl-C does not interrupt, and end the process when the context exits."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_response(
    request: urllib.request.Request, process: subprocess.Popen[bytes], name: str, log: Callable[[], str]
) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(request, timeout=_RESPONSE_S):
                return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"{name} did not start: {error}\n{log()}") from error
            time.sleep(0.1)


def _run(command: list[str], timeout_s: float = 60) -> None:
    try:
        done = subprocess.run(
            command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ServerError(f"{' '.join(command)} did not end within {timeout_s:.0f} s") from error
    if done.returncode:
        raise ServerError(f"{' '.join(command)} failed: {(done.stdout + done.stderr).strip()[:500]}")
