"""What every tool shares: Kafka's way with flags, the client behind `--bootstrap-server`, errors as one line.

Flags may be shortened to a unique prefix. A wrong command line is one line and the usage on standard error, status 1;
so is a cluster that cannot be reached, after a bounded time. Names that Kafka deprecated (KIP-1147) are accepted and
warned about. Heavy modules are imported when a tool needs them: `--help` costs nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from headrace_broker.protocol import KAFKA_VERSION

if TYPE_CHECKING:
    from headrace_broker.client.admin import Admin
    from headrace_broker.client.cluster import Cluster
    from headrace_broker.client.cluster_view import TopicView
    from headrace_broker.client.config import ClientConfig, Kind
    from headrace_broker.client.errors import ClientError

T = TypeVar("T")

_REACH_TIMEOUT_MS = 5_000
_PATIENCE_MS = 2_000
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_TERMINATED = 143


class ToolError(Exception):
    """What keeps a tool from doing its work, as the user should read it."""


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, help="Show the version.")

    def __call__(self, parser: argparse.ArgumentParser, *ignored: object) -> None:
        from importlib.metadata import version

        print(f"{KAFKA_VERSION} (headrace {version('headrace')})")
        parser.exit(0)


class Parser(argparse.ArgumentParser):
    """A parser with Kafka's manners: `--help` and `--version`, the fault and the usage on standard error, status 1."""

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=name, description=description, add_help=False, formatter_class=_formatter, argument_default=None
        )
        self.add_argument("--help", action="help", help="Show this text.")
        self.add_argument("--version", action=_Version)

    def error(self, message: str) -> NoReturn:
        print(message, file=sys.stderr)
        self.print_usage(sys.stderr)
        raise SystemExit(1)

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse the command line (None = this process's); without any argument, the whole help goes to stderr."""
        arguments = sys.argv[1:] if argv is None else list(argv)
        if not arguments:
            self.print_help(sys.stderr)
            raise SystemExit(1)
        return self.parse_args(self._with_values(arguments))

    def _with_values(self, arguments: list[str]) -> list[str]:
        """Tie values to their options: other than argparse, Kafka takes a value that begins with a dash."""
        tied: list[str] = []
        rest = iter(range(len(arguments)))
        for index in rest:
            word, following = arguments[index], arguments[index + 1 : index + 2]
            if following and self._takes_value(word) and following[0] not in self._option_string_actions:
                next(rest)
                word = f"{word}={following[0]}"
            tied.append(word)
        return tied

    def _takes_value(self, word: str) -> bool:
        actions = self._option_string_actions
        names = [word] if word in actions else [name for name in actions if word[:2] == "--" and name.startswith(word)]
        found = {id(actions[name]): actions[name] for name in names}
        return len(word) > 2 and word[:2] == "--" and len(found) == 1 and next(iter(found.values())).nargs is None

    def add_bootstrap_server(self, other_name: str | None = "--broker-list") -> None:
        """Add `--bootstrap-server`, with the second name that Kafka's tool had or has; see `required_server`."""
        names = [name for name in ("--bootstrap-server", other_name) if name]
        help_text = "REQUIRED: the brokers to connect to first."
        self.add_argument(*names, dest="bootstrap_server", metavar="HOST:PORT,…", help=help_text)

    def add_bootstrap_controller(self, *names: str) -> None:
        """Add `--bootstrap-controller`, which stands in place of `--bootstrap-server`; see `required_server`."""
        help_text = "Controllers to ask in place of brokers, also while no broker is up."
        self.add_argument("--bootstrap-controller", *names, metavar="HOST:PORT,…", help=help_text)

    def add_command_config(self, *names: str) -> None:
        """Add `--command-config FILE`, under these names too."""
        names = ("--command-config", *names)
        self.add_argument(*names, dest="command_config", metavar="FILE", help="A file of client properties.")

    def required_server(self, options: argparse.Namespace) -> str:
        """Return the bootstrap servers; a usage error when they are missing or no HOST:PORT list."""
        self.exclude(options, "bootstrap_server", ["bootstrap_controller"] if asks_controllers(options) else [])
        servers = _servers(options)
        if not servers:
            self.error('Missing required argument "[bootstrap-server]"')
        for server in servers.split(","):
            port = server.strip().rpartition(":")[2]
            if ":" not in server or not port.isdigit():
                self.error("Please provide valid host:port like host1:9091,host2:9092")
        return servers

    def only_action(self, options: argparse.Namespace, actions: Sequence[str]) -> str:
        """Return the one of these options (destinations) that was given; a usage error for none, or several."""
        given = [action for action in actions if is_given(options, action)]
        if len(given) != 1:
            names = ", ".join(f"--{action.replace('_', '-')}" for action in actions)
            self.error(f"Command must include exactly one action: {names}")
        return given[0]

    def only_with(self, options: argparse.Namespace, action: str, allowed: Mapping[str, Collection[str]]) -> None:
        """A usage error for an option that does not go with the action; `allowed` = {option: its actions}."""
        for name, actions in allowed.items():
            if action not in actions:
                self.exclude(options, name, [action])

    def exclude(self, options: argparse.Namespace, used: str, others: Iterable[str]) -> None:
        """A usage error when the option `used` is given together with one of the others (destinations)."""
        if not is_given(options, used):
            return
        for other in others:
            if other != used and is_given(options, other):
                self.error(f'Option "{_flag(used)}" can\'t be used with option "{_flag(other)}"')

    def require(self, options: argparse.Namespace, *names: str) -> None:
        """A usage error when one of these options (destinations) is missing."""
        for name in names:
            if not is_given(options, name):
                self.error(f'Missing required argument "{_flag(name)}"')


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34, width=110)


def _flag(destination: str) -> str:
    return f"[{destination.replace('_', '-')}]"


def is_given(options: argparse.Namespace, name: str) -> bool:
    """Whether an option was on the command line."""
    value = getattr(options, name)
    return value is not None and value is not False and value != []


def asks_controllers(options: argparse.Namespace) -> bool:
    """Whether `--bootstrap-controller` was given, of a tool that knows it."""
    return bool(getattr(options, "bootstrap_controller", None))


def _servers(options: argparse.Namespace) -> str | None:
    servers: str | None = options.bootstrap_server or getattr(options, "bootstrap_controller", None)
    return servers


def warn_deprecated(options: argparse.Namespace, argv: Sequence[str] | None, names: Mapping[str, str]) -> None:
    """Say on standard error which old names ({old: new}) were used."""
    for argument in sys.argv[1:] if argv is None else argv:
        name = argument.partition("=")[0]
        if name in names:
            print(f"Warning: {name} is deprecated. Use {names[name]} instead.", file=sys.stderr)


def warn_without_metrics(options: argparse.Namespace) -> None:
    """Say on standard error that `--print-metrics`, which is taken for the sake of scripts, prints nothing."""
    if options.print_metrics:
        print("WARNING: --print-metrics: this client keeps no metrics, so none are printed", file=sys.stderr)


# -- properties and clients ------------------------------------------------------------------------------------------


def load_properties(path: str) -> dict[str, str]:
    """Read a Java properties file; raises ToolError."""
    import javaproperties

    try:
        with open(path, encoding="latin-1") as file:
            return dict(javaproperties.load(file))
    except (OSError, ValueError) as error:
        raise ToolError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def key_values(pairs: Iterable[str] | None) -> dict[str, str]:
    """Return the properties that were given as `key=value`; the value may hold equals signs, or be missing."""
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs or ())}


def properties_of(path: str | None, pairs: Iterable[str] | None = None) -> dict[str, str]:
    """Return the properties of a file, if one was given, and over them those given as `key=value`. Raises ToolError."""
    return {**(load_properties(path) if path else {}), **key_values(pairs)}


def client_properties(options: argparse.Namespace) -> dict[str, str]:
    """Return the client properties of `--command-config` with the servers to ask first in them. Raises ToolError."""
    return {**properties_of(options.command_config), "bootstrap.servers": _servers(options) or ""}


def client_config(properties: Mapping[str, str], kind: Kind) -> ClientConfig:
    """Make a client's configuration; its warnings go to standard error. Raises ClientConfigError."""
    from headrace_broker.client.config import ClientConfig

    config = ClientConfig.from_properties(properties, kind)
    for warning in config.warnings:
        print(f"WARN {warning}", file=sys.stderr)
    return config


async def open_cluster(config: ClientConfig, *, is_of_controllers: bool = False) -> Cluster:
    """Connect, within default.api.timeout.ms if that was given, else within seconds. Raises ToolError."""
    from headrace_broker.client.cluster import Cluster
    from headrace_broker.client.controllers import Controllers
    from headrace_broker.client.errors import TimedOutError

    explicit = "default.api.timeout.ms" in config.explicit
    timeout_ms = config.default_api_timeout_ms if explicit else _REACH_TIMEOUT_MS
    try:
        return await (Controllers if is_of_controllers else Cluster).open(config, timeout_ms=timeout_ms)
    except TimedOutError as error:
        servers = ", ".join(f"{host}:{port}" for host, port in config.bootstrap_servers)
        why = f": {error.__cause__}" if str(error.__cause__ or "") else ""
        kind = "controller" if is_of_controllers else "broker"
        raise ToolError(f"no {kind} could be reached at {servers} within {timeout_ms / 1000:g} s{why}") from error


async def await_topic(cluster: Cluster, topic: str, timeout_ms: float) -> TopicView:
    """Return a topic when it exists; says on standard error when that takes longer. Raises ToolError, BrokerError."""
    from headrace_broker.client.errors import TimedOutError

    for patience_ms in (min(_PATIENCE_MS, timeout_ms), timeout_ms - _PATIENCE_MS):
        try:
            return await cluster.topic(topic, patience_ms)
        except TimedOutError as error:
            if patience_ms == _PATIENCE_MS < timeout_ms:
                print(f"WARN waiting for {error.__cause__ or error}", file=sys.stderr)
                continue
            raise ToolError(f"Topic {topic} not present in metadata after {timeout_ms:.0f} ms.") from error
    raise AssertionError("the second try returns or raises")


@asynccontextmanager
async def admin_client(options: argparse.Namespace, **properties: str) -> AsyncIterator[Admin]:
    """An admin client of the servers that were named, for the length of a block; `a_b="x"` sets the property a.b.

    Raises ClientConfigError, ToolError.
    """
    from headrace_broker.client.admin import Admin

    given = {key.replace("_", "."): value for key, value in properties.items()}
    config = client_config(client_properties(options) | given, "admin")
    cluster = await open_cluster(config, is_of_controllers=asks_controllers(options))
    try:
        yield await Admin.open(config, cluster=cluster)
    finally:
        await cluster.close()


def reason(error: ClientError) -> str:
    """Return the broker's own words for an error, without the subject and the code's name."""
    from headrace_broker.client.errors import BrokerError

    if isinstance(error, BrokerError):
        return str(error).removeprefix(f"{error.subject}: {error.code.name if error.code else ''}: ")
    return str(error)


# -- running ---------------------------------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, int], *, on_error: Callable[[str], None] | None = None, fast: bool = False) -> int:
    """Run a tool's work and return its status; a failure is one line and status 1. `fast` = on uvloop.

    SIGINT and SIGTERM cancel the work; the status is then 130 or 143.
    """
    import logging

    from headrace_broker.client.errors import ClientError

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="[%(asctime)s] %(levelname)s %(message)s")
    tell = on_error or (lambda text: print(text, file=sys.stderr))
    try:
        with asyncio.Runner(loop_factory=_fast_loop() if fast else None) as runner:
            return runner.run(_cancelled_by_sigterm(work))
    except (ClientError, ToolError) as error:
        tell(str(error))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except asyncio.CancelledError:
        return _TERMINATED
    return 1


async def _cancelled_by_sigterm(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def in_thread(function: Callable[[], T]) -> T:
    """Run blocking work in a daemon thread: one that hangs in a read or write keeps no process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        try:
            value, error = function(), None
        except BaseException as failure:  # noqa: BLE001  (whatever it is belongs to the one who waits)
            value, error = None, failure
        try:
            loop.call_soon_threadsafe(settle, value, error)
        except RuntimeError:
            return  # the loop has ended: nobody waits any more

    threading.Thread(target=work, daemon=True).start()
    return await done


def leave(main: Callable[[], int]) -> NoReturn:
    """Run a tool as this process's console script, quietly when its reader has gone."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _BROKEN_PIPE
    except KeyboardInterrupt:
        status = _INTERRUPTED
    sys.exit(status)
