"""The broker's process: `python -m headrace_broker.server [FILE] [options]`.

    FILE                  Kafka's properties file; without one, a single node with its data in ./headrace-data/broker
    --property KEY=VALUE  set or override one key, may be repeated (`--override`, as Kafka's script calls it, too)
    --cluster-id ID       the cluster an empty data directory is formatted for (default: a fresh id)
    --watch-fd N          end cleanly when this inherited descriptor reaches its end: give the child the read end of a
                          pipe, keep the write end open, and the broker goes however its parent dies
    --parent-pid PID      ask the kernel to send SIGTERM when the parent dies (Linux); ends at once if PID is gone. With
                          --watch-fd, SIGCONT: that wakes a stopped broker, which then sees the descriptor's end
    --ready-fd N          write "HOST:PORT" and a newline to this inherited descriptor when serving, and close it

An empty data directory is formatted on the way.  When the broker serves it prints one line on standard output,
flushed, `headrace broker 1 serves 127.0.0.1:9092 (started in 83 ms)`; log lines go to standard error.  SIGTERM and
SIGINT end it cleanly with status 0; whatever keeps it from starting is one line on standard error and status 1.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headrace_broker.protocol.uuid_text import decode_uuid, encode_uuid
from headrace_broker.server.config import BrokerConfig, ConfigError
from headrace_broker.server.data_dirs import StartError, format_directories
from headrace_broker.server.network.descriptors import raise_descriptor_limit
from headrace_broker.server.parent_death import die_with_parent

if TYPE_CHECKING:
    from headrace_broker.server.node import Node

logger = logging.getLogger(__name__)

_GC_THRESHOLDS = (50_000, 20, 50)
_WITHOUT_A_FILE = {"node.id": "1", "log.dirs": "headrace-data/broker", "offsets.topic.replication.factor": "1"}


def main(arguments: list[str] | None = None) -> int:
    """Run a broker from the command line; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        properties = _properties(options)
    except OSError as error:
        print(f"headrace broker: {options.file}: {error.strerror}", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(f"headrace broker: {error}", file=sys.stderr)
        return 1
    return run(
        properties,
        cluster_id=options.cluster_id,
        watch_fd=options.watch_fd,
        parent_pid=options.parent_pid,
        ready_fd=options.ready_fd,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace broker start", description="Run a Kafka-compatible broker.")
    parser.add_argument(
        "file", nargs="?", help="Kafka's properties file; without one, a single node on port 9092 keeps its data in "
        f"./{_WITHOUT_A_FILE['log.dirs']}"
    )  # fmt: skip
    parser.add_argument(
        "--property", "--override", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="set a key, over the file; may be repeated"
    )  # fmt: skip
    parser.add_argument("--cluster-id", metavar="ID", help="the cluster to format empty data directories for")
    for internal in ("--watch-fd", "--parent-pid", "--ready-fd"):  # for programs that start brokers: see above
        parser.add_argument(internal, type=int, help=argparse.SUPPRESS)
    return parser


def _properties(options: argparse.Namespace) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for override in options.overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise SystemExit(f"headrace broker: --property {override}: expected KEY=VALUE")
        overrides[key.strip()] = value.strip()
    if options.file is not None:
        return load_properties(options.file) | overrides
    old_names = {"broker.id": "node.id", "log.dir": "log.dirs"}
    given = {old_names.get(key, key) for key in overrides}
    return {key: value for key, value in _WITHOUT_A_FILE.items() if key not in given} | overrides


def load_properties(path: str) -> dict[str, str]:
    """Read a Java properties file; raises OSError, ConfigError."""
    import javaproperties

    with open(path, encoding="latin-1") as file:
        try:
            return dict(javaproperties.load(file))
        except ValueError as error:
            raise ConfigError([f"{path}: {error}"]) from None


def run(
    properties: Mapping[str, str],
    *,
    cluster_id: str | None = None,
    watch_fd: int | None = None,
    parent_pid: int | None = None,
    ready_fd: int | None = None,
) -> int:
    """Run one broker until it is told to stop; returns the exit status."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
    )
    try:
        config = BrokerConfig.from_properties(properties)
        _warn(config.warnings)
        if cluster_id is not None:
            _check_cluster_id(cluster_id)
        number = signal.SIGTERM if watch_fd is None else signal.SIGCONT
        if parent_pid is not None and not die_with_parent(parent_pid, number):
            raise StartError(f"parent process {parent_pid} is gone")
        raise_descriptor_limit()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(config, cluster_id, watch_fd, ready_fd))
    except ConfigError as error:
        _warn(error.warnings)  # a misspelt key often explains an error
        for line in error.errors:
            print(f"headrace broker: {line}", file=sys.stderr)
        return 1
    except StartError as error:
        print(f"headrace broker: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"headrace broker: {_os_fault(error)}", file=sys.stderr)
        return 1
    return 0


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        logger.warning("%s", warning)


def format_storage(properties: Mapping[str, str], cluster_id: str | None = None) -> list[str]:
    """Format the data directories of a node (`headrace broker format`); returns lines to show.

    Raises ConfigError and StartError.
    """
    from headrace_broker.log.storage import DiskStorage

    config = BrokerConfig.from_properties(properties)
    if cluster_id is not None:
        _check_cluster_id(cluster_id)
    done = format_directories(DiskStorage(), config.all_dirs, config.node_id, cluster_id)
    return [f"{path} {'was formatted' if is_new else 'is formatted already'}" for path, is_new in done]


def _check_cluster_id(cluster_id: str) -> None:
    try:
        decode_uuid(cluster_id)
    except ValueError:
        raise StartError(
            f"cluster id '{cluster_id}' is not 16 bytes in URL-safe base64; one that is: {encode_uuid(os.urandom(16))}"
        ) from None


async def _run(config: BrokerConfig, cluster_id: str | None, watch_fd: int | None, ready_fd: int | None) -> None:
    from headrace_broker.server.node import Node

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if watch_fd is not None:
        _stop_at_end(loop, watch_fd, stop)
    node = await _unless_stopped(Node.start(config, cluster_id=cluster_id), stop)
    if node is None:
        logger.info("node %d was told to stop before it served", config.node_id)
        return
    node.failed.add_done_callback(_end_at_once)
    try:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        _announce(node, ready_fd)
        await stop.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)  # a second signal ends a stop that hangs
        await node.stop()


async def _unless_stopped(start: Coroutine[Any, Any, Node], stop: asyncio.Event) -> Node | None:
    """The started node; None when told to stop before: a start waits long for a quorum that is not reachable."""
    starting = asyncio.ensure_future(start)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
    return None if starting.cancelled() else starting.result()


def _end_at_once(failed: asyncio.Future[str]) -> None:
    """The node's disk failed: its peers take over as soon as the process is gone, and nothing could be put in order."""
    if not failed.cancelled():
        print(f"headrace broker: {failed.result()}: stopping, the other nodes go on", file=sys.stderr, flush=True)
        os._exit(1)


def _announce(node: Node, ready_fd: int | None) -> None:
    is_broker = node.broker is not None
    listeners = node.advertised if is_broker else node.config.controller_listeners
    addresses = [str(item).partition("://")[2] for item in listeners]
    who = f"headrace {'broker' if is_broker else 'controller'} {node.node_id}"
    _say(f"{who} serves {', '.join(addresses)} (started in {_age_ms()} ms)")
    if ready_fd is not None:
        os.write(ready_fd, f"{addresses[0]}\n".encode())
        os.close(ready_fd)


def _say(line: str) -> None:
    """Tell whoever reads standard output; a full disk or a closed pipe there is no reason not to serve."""
    try:
        print(line, flush=True)
    except OSError:  # nothing else is said there: Python would stumble over this line once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop_at_end(loop: asyncio.AbstractEventLoop, watch_fd: int, stop: asyncio.Event) -> None:
    def readable() -> None:
        try:
            ended = not os.read(watch_fd, 4096)
        except BlockingIOError:
            return
        except OSError:
            ended = True
        if ended:
            loop.remove_reader(watch_fd)
            stop.set()

    os.set_blocking(watch_fd, False)
    loop.add_reader(watch_fd, readable)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _os_fault(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"the disk is full{where}: make room or name another directory in log.dirs"
    return f"{error.strerror or error}{where}"


def _age_ms() -> int:
    """Milliseconds since this process began."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return int(time.process_time() * 1000)
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000 - ticks * 1000 / os.sysconf("SC_CLK_TCK"))
