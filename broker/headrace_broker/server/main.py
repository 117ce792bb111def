"""The broker's process: `python -m headrace_broker.server [FILE] [options]`.

    FILE                  Kafka properties file (default: run a single node with its data in ./headrace-data/broker)
    --property KEY=VALUE  set or override one key; may be repeated (also as `--override`, the name in Kafka's script)
    --cluster-id ID       the cluster id to format an empty data directory with (default: a new id)
    --watch-fd N          stop cleanly when this inherited descriptor reaches end-of-file. If a parent process keeps
                          the write end of a pipe and passes the read end, the broker stops when the parent dies
    --parent-pid PID      ask the kernel to send SIGTERM when the parent dies (Linux). Exit immediately if PID is dead.
                          With --watch-fd the signal is SIGCONT, so that a suspended broker resumes and reads the
                          end-of-file
    --ready-fd N          write "HOST:PORT" and a newline to this inherited descriptor when ready, and close it

In a cluster with one node, the broker formats an empty data directory when it starts. When the broker accepts requests,
it prints one line to standard output: `headrace broker 1 serves 127.0.0.1:9092 (started in 83 ms)`. Log lines go to
standard error. SIGTERM and SIGINT stop the broker cleanly with status 0. A signal that arrives more than two seconds
after the first signal kills the process. If the broker cannot start, it prints one line to standard error and exits
with status 1.
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

from headrace_broker.help_epilog import read_on
from headrace_broker.protocol.uuid_text import decode_uuid, encode_uuid
from headrace_broker.server.config import BrokerConfig, ConfigError
from headrace_broker.server.data_dirs import StartError, format_directories
from headrace_broker.server.network.file_descriptor_limit import raise_file_descriptor_limit
from headrace_broker.server.parent_death import die_with_parent

if TYPE_CHECKING:
    from headrace_broker.server.node import Node

logger = logging.getLogger(__name__)

_GC_THRESHOLDS = (50_000, 20, 50)
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNAL_REPEAT_S = 2.0  # `timeout` and process supervisors send a signal to the process, then again to its group
_DEFAULTS_WITHOUT_FILE = {"node.id": "1", "log.dirs": "headrace-data/broker", "offsets.topic.replication.factor": "1"}


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


def properties_without_file(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a broker that is started without a properties file."""
    old_names = {"broker.id": "node.id", "log.dir": "log.dirs"}
    given = {old_names.get(key, key) for key in overrides}
    return {**{key: value for key, value in _DEFAULTS_WITHOUT_FILE.items() if key not in given}, **overrides}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace broker start",
        description="Run a Kafka-compatible broker.",
        epilog=read_on("docs/examples.md", "docs/broker.md", "docs/reference/broker.md"),
    )
    parser.add_argument(
        "file", nargs="?", help="Kafka properties file (default: run a single node on port 9092 with its data in "
        f"./{_DEFAULTS_WITHOUT_FILE['log.dirs']})"
    )  # fmt: skip
    parser.add_argument(
        "--property", "--override", action="append", default=[], metavar="KEY=VALUE", dest="overrides",
        help="set or override one key of the file; may be repeated"
    )  # fmt: skip
    parser.add_argument("--cluster-id", metavar="ID", help="the cluster id to format empty data directories with")
    for internal in ("--watch-fd", "--parent-pid", "--ready-fd"):  # see the module docstring
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
    return properties_without_file(overrides)


def load_properties(path: str) -> dict[str, str]:
    """Read a Java properties file. Raises OSError, ConfigError."""
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
    """Run one broker until it is stopped; returns the exit status.

    The parameters after `properties` are options of the command line, which the module docstring describes.
    """
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
            raise StartError(f"the parent process {parent_pid} exited before the broker started")
        raise_file_descriptor_limit()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_run(config, cluster_id, watch_fd, ready_fd))
        for number in _STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # the node has stopped, and this process exits
    except ConfigError as error:
        _warn(error.warnings)  # a misspelled key often explains an error
        for line in error.errors:
            print(f"headrace broker: {line}", file=sys.stderr)
        return 1
    except StartError as error:
        print(f"headrace broker: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"headrace broker: {_os_error_text(error)}", file=sys.stderr)
        return 1
    return 0


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        logger.warning("Broker configuration: %s", warning)


def format_storage(properties: Mapping[str, str], cluster_id: str | None = None) -> list[str]:
    """Format the data directories of a node (`headrace broker format`); returns the lines to print.

    Raises ConfigError and StartError.
    """
    from headrace_broker.log.storage import DiskStorage

    config = BrokerConfig.from_properties(properties)
    if cluster_id is not None:
        _check_cluster_id(cluster_id)
    formatted = format_directories(DiskStorage(), config.all_dirs, config.node_id, cluster_id)
    return [f"{path} {'was formatted' if is_new else 'is formatted already'}" for path, is_new in formatted]


def _check_cluster_id(cluster_id: str) -> None:
    try:
        decode_uuid(cluster_id)
    except ValueError:
        raise StartError(
            f"cluster id '{cluster_id}' is not 16 bytes in URL-safe base64; for example: {encode_uuid(os.urandom(16))}"
        ) from None


async def _run(config: BrokerConfig, cluster_id: str | None, watch_fd: int | None, ready_fd: int | None) -> None:
    from headrace_broker.server.node import Node

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    if watch_fd is not None:
        _stop_at_eof(loop, watch_fd, stop)
    node = await _start_unless_stopped(Node.start(config, cluster_id=cluster_id), stop)
    if node is None:
        logger.info("Node %d was stopped before its start completed", config.node_id)
        return
    node.failed.add_done_callback(_exit_on_failure)
    try:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        _announce(node, ready_fd)
        await stop.wait()
    finally:
        loop.call_later(_SIGNAL_REPEAT_S, _remove_signal_handlers, loop)
        await node.stop()


def _remove_signal_handlers(loop: asyncio.AbstractEventLoop) -> None:
    """Remove the signal handlers, so that the next signal kills the process if the stop hangs."""
    for number in _STOP_SIGNALS:
        loop.remove_signal_handler(number)


async def _start_unless_stopped(start: Coroutine[Any, Any, Node], stop: asyncio.Event) -> Node | None:
    """Start the node. Returns None if `stop` is set first, for example while the node waits for the quorum."""
    starting = asyncio.ensure_future(start)
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
    return None if starting.cancelled() else starting.result()


def _exit_on_failure(failed: asyncio.Future[str]) -> None:
    """Exit immediately after a failure of the node's disk.

    A clean stop is impossible, and an immediate exit lets other nodes elect new leaders sooner.
    """
    if not failed.cancelled():
        print(
            f"headrace broker: {failed.result()}: stopping, so that other nodes can become leaders",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)


def _announce(node: Node, ready_fd: int | None) -> None:
    is_broker = node.broker is not None
    listeners = node.advertised if is_broker else node.config.controller_listeners
    addresses = [str(item).partition("://")[2] for item in listeners]
    name = f"headrace {'broker' if is_broker else 'controller'} {node.node_id}"
    _print_line(f"{name} serves {', '.join(addresses)} (started in {_process_age_ms()} ms)")
    if ready_fd is not None:
        os.write(ready_fd, f"{addresses[0]}\n".encode())
        os.close(ready_fd)


def _print_line(line: str) -> None:
    """Print a line to standard output. If this fails (full disk, closed pipe), the broker continues."""
    try:
        print(line, flush=True)
    except OSError:  # discard the output, because otherwise Python would fail to flush it again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop_at_eof(loop: asyncio.AbstractEventLoop, watch_fd: int, stop: asyncio.Event) -> None:
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


def _os_error_text(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    if error.errno == errno.ENOSPC:
        return f"the disk is full{where}: free some space or configure another directory in log.dirs"
    return f"{error.strerror or error}{where}"


def _process_age_ms() -> int:
    """Return the milliseconds since this process started."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return int(time.process_time() * 1000)
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000 - ticks * 1000 / os.sysconf("SC_CLK_TCK"))
