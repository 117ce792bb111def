"""Runs Apache Kafka and Kafka Connect, so that tests can compare them with headrace.

Maven downloads the jars to build/. The processes use free ports.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
POM = Path(__file__).with_name("apache-pom.xml")
LIBS = ROOT / "build" / f"apache-kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:8]}"
"""The directory of the jars; each version of the POM has its own directory."""
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
# The JVM flags of Kafka's start scripts.
BROKER_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.awt.headless=true",
)
CONNECT_FLAGS = ("-Xms256M", "-Xmx2G")
# Flags for tests. A JVM that runs for seconds needs half of the CPU time without the optimizing compiler (C2).
SHORT_RUN_FLAGS = ("-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
START_TIMEOUT_S = 60.0


def unavailable_reason() -> str | None:
    """Return why Apache Kafka cannot run on this machine, or None if it can."""
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            return f"{program} is not on the path: running Apache Kafka needs Maven and Java 17"
    return None


@functools.cache
def classpath() -> str:
    """Return the class path of Apache Kafka. The first call downloads the jars."""
    LIBS.mkdir(parents=True, exist_ok=True)
    marker = LIBS / ".complete"
    with (LIBS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests of other processes need the same files
        if not marker.exists():
            _fetch()
            marker.touch()
    return f"{LIBS}/*"


def _fetch() -> None:
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={LIBS}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"Maven could not fetch Apache Kafka: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    (LIBS / "log4j2.properties").write_text(
        "rootLogger.level=WARN\nrootLogger.appenderRef.stderr.ref=E\n"
        "appender.e.type=Console\nappender.e.name=E\nappender.e.target=SYSTEM_ERR\n"
        "appender.e.layout.type=PatternLayout\nappender.e.layout.pattern=[%d] %p %m (%c)%n\n"
    )


def java_command(main_class: str, *arguments: str, flags: Sequence[str] = SHORT_RUN_FLAGS) -> list[str]:
    """Return the command line for one of Kafka's main classes."""
    logging = f"-Dlog4j2.configurationFile={LIBS / 'log4j2.properties'}"
    return ["java", *flags, logging, "-cp", classpath(), main_class, *arguments]


def run_tool(
    main_class: str,
    *arguments: str,
    stdin: str = "",
    timeout_s: float = 60.0,
    flags: Sequence[str] = SHORT_RUN_FLAGS,
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line tools."""
    command = java_command(main_class, *arguments, flags=flags)
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s)


@dataclass(frozen=True, slots=True)
class ApacheProcess:
    """A running broker or Connect worker."""

    address: str
    pid: int
    log: Path
    directory: Path


@contextmanager
def broker(*, flags: Sequence[str] = BROKER_FLAGS, **overrides: str) -> Iterator[ApacheProcess]:
    """Run a single Apache Kafka node, which is broker and controller."""
    directory = Path(mkdtemp(prefix="headrace-apache-kafka-"))
    port, controller_port = free_ports(2)
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(directory / "data"),
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        **overrides,
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    formatted = run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), flags=flags)
    if formatted.returncode:
        raise RuntimeError(f"could not format Apache Kafka's storage: {formatted.stdout}{formatted.stderr}")
    command = java_command("kafka.Kafka", str(properties), flags=flags)
    with _process(command, directory, f"127.0.0.1:{port}") as running:
        yield running


@contextmanager
def cluster(nodes: int = 3, **overrides: str) -> Iterator[list[ApacheProcess]]:
    """Run a cluster of Apache Kafka nodes, each of which is broker and controller."""
    ports = free_ports(2 * nodes)
    voters = ",".join(f"{number}@127.0.0.1:{ports[2 * number - 1]}" for number in range(1, nodes + 1))
    with ExitStack() as stack:
        started = []
        for number in range(1, nodes + 1):
            port, controller_port = ports[2 * number - 2], ports[2 * number - 1]
            directory = Path(mkdtemp(prefix="headrace-apache-kafka-"))
            settings = {
                "process.roles": "broker,controller",
                "node.id": str(number),
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(directory / "data"),
                "group.initial.rebalance.delay.ms": "0",
                **overrides,
            }
            properties = directory / "server.properties"
            properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
            formatted = run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
            if formatted.returncode:
                raise RuntimeError(f"could not format Apache Kafka's storage: {formatted.stdout}{formatted.stderr}")
            command = java_command("kafka.Kafka", str(properties), flags=BROKER_FLAGS)
            started.append(
                stack.enter_context(_process(command, directory, f"127.0.0.1:{port}", wait_until_listening=False))
            )
        for node in started:
            _wait_for_port(node)
        yield started


@contextmanager
def connect_standalone(
    worker: dict[str, str], connectors: Sequence[dict[str, str]], *, flags: Sequence[str] = CONNECT_FLAGS
) -> Iterator[ApacheProcess]:
    """Run Kafka's connect-standalone with one worker configuration and several connector configurations."""
    directory = Path(mkdtemp(prefix="headrace-apache-connect-"))
    (port,) = free_ports(1)
    settings = {
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.discovery": "service_load",
        "offset.storage.file.filename": str(directory / "connect.offsets"),
        **worker,
    }
    files = []
    for name, config in (("worker", settings), *((config["name"], config) for config in connectors)):
        file = directory / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
        files.append(str(file))
    command = java_command("org.apache.kafka.connect.cli.ConnectStandalone", *files, flags=flags)
    with _process(command, directory, f"127.0.0.1:{port}") as running:
        yield running


@contextmanager
def connect_distributed(worker: Mapping[str, str], *, flags: Sequence[str] = CONNECT_FLAGS) -> Iterator[ApacheProcess]:
    """Run Kafka's connect-distributed, and yield the process when its REST port is open.

    The process's `address` is the address of its REST server: the address in `listeners`, or by default a free port of
    127.0.0.1.
    """
    directory = Path(mkdtemp(prefix="headrace-apache-connect-"))
    (port,) = free_ports(1)
    settings = {"listeners": f"http://127.0.0.1:{port}", "plugin.discovery": "service_load", **worker}
    file = directory / "worker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = java_command("org.apache.kafka.connect.cli.ConnectDistributed", str(file), flags=flags)
    with _process(command, directory, settings["listeners"].partition("://")[2]) as running:
        yield running


@contextmanager
def _process(
    command: Sequence[str], directory: Path, address: str, *, wait_until_listening: bool = True
) -> Iterator[ApacheProcess]:
    log = directory / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=directory)
    try:
        if wait_until_listening:
            _wait_until_listening(process, address, log)
        yield ApacheProcess(address, process.pid, log, directory)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for_port(node: ApacheProcess) -> None:
    host, port = node.address.rsplit(":", 1)
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{node.address} does not listen: {node.log.read_text()[-2000:]}") from None
            time.sleep(0.05)  # poll, because Apache Kafka does not report when it is ready


def _wait_until_listening(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.05)  # poll, because Apache Kafka does not report when it is ready
            continue
        return
    raise RuntimeError(f"{address} did not start to listen:\n{log.read_text()[-3000:]}")
