"""Functions that all tools share. They parse options in the same way as Kafka's tools, open clients and print errors.

Options may be abbreviated to a unique prefix. After a usage error, a tool prints one line and the usage on standard
error and exits with status 1. If the cluster cannot be reached, the tool prints one line after a timeout. Option names
that Kafka has deprecated (KIP-1147) are accepted with a warning. Large modules are imported only when a tool needs
them, so that `--help` is fast.
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

from headrace_broker.help_epilog import read_on
from headrace_broker.tools.tool_error import ToolError
from headrace_broker.version_option import VersionOption

if TYPE_CHECKING:
    from headrace_broker.client.admin import Admin
    from headrace_broker.client.cluster import Cluster
    from headrace_broker.client.cluster_view import TopicView
    from headrace_broker.client.config import ClientConfig, Kind
    from headrace_broker.client.errors import ClientError

T = TypeVar("T")

_CONNECT_TIMEOUT_MS = 5_000
_WARN_AFTER_MS = 2_000
_INTERRUPTED = 130
_BROKEN_PIPE = 141
_TERMINATED = 143


class Parser(argparse.ArgumentParser):
    """Parses command-line options in the same way as Kafka's tools.

    If the usage is wrong, prints the error on standard error and exits with status 1.
    """

    def __init__(self, name: str, description: str) -> None:
        super().__init__(
            prog=name,
            description=description,
            epilog=read_on("docs/examples.md", "docs/features.md", "docs/reference/broker.md"),
            add_help=False,
            formatter_class=_formatter,
            argument_default=None,
        )
        self.add_argument("--help", action="help", help="Show this text.")
        self.add_argument("--version", action=VersionOption)

    def error(self, message: str) -> NoReturn:
        print(message, file=sys.stderr)
        self.print_usage(sys.stderr)
        raise SystemExit(1)

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse `argv`, by default the process's arguments. Without arguments, print the help to stderr and exit."""
        arguments = sys.argv[1:] if argv is None else list(argv)
        if not arguments:
            self.print_help(sys.stderr)
            raise SystemExit(1)
        return self.parse_args(self._attach_values(arguments))

    def _attach_values(self, arguments: list[str]) -> list[str]:
        """Join each option and its value with "=", because argparse otherwise rejects values that begin with a dash."""
        joined: list[str] = []
        indexes = iter(range(len(arguments)))
        for index in indexes:
            word, following = arguments[index], arguments[index + 1 : index + 2]
            if following and self._takes_value(word) and following[0] not in self._option_string_actions:
                next(indexes)
                word = f"{word}={following[0]}"
            joined.append(word)
        return joined

    def _takes_value(self, word: str) -> bool:
        actions = self._option_string_actions
        names = [word] if word in actions else [name for name in actions if word[:2] == "--" and name.startswith(word)]
        found = {id(actions[name]): actions[name] for name in names}
        return len(word) > 2 and word[:2] == "--" and len(found) == 1 and next(iter(found.values())).nargs is None

    def add_bootstrap_server(self, other_name: str | None = "--broker-list") -> None:
        """Add `--bootstrap-server`, and `other_name` as its deprecated name; see `required_server`."""
        names = [name for name in ("--bootstrap-server", other_name) if name]
        help_text = "REQUIRED: the brokers to connect to first."
        self.add_argument(*names, dest="bootstrap_server", metavar="HOST:PORT,…", help=help_text)

    def add_bootstrap_controller(self, *names: str) -> None:
        """Add `--bootstrap-controller`, the alternative to `--bootstrap-server`; see `required_server`."""
        help_text = "The controllers to connect to instead of brokers; works while no broker is running."
        self.add_argument("--bootstrap-controller", *names, metavar="HOST:PORT,…", help=help_text)

    def add_command_config(self, *names: str) -> None:
        """Add the option `--command-config FILE` and the given aliases."""
        names = ("--command-config", *names)
        self.add_argument(*names, dest="command_config", metavar="FILE", help="A properties file for the client.")

    def required_server(self, options: argparse.Namespace) -> str:
        """Return the bootstrap servers; exit with a usage error if they are missing or not a HOST:PORT list."""
        self.reject_combination(
            options, "bootstrap_server", ["bootstrap_controller"] if uses_controllers(options) else []
        )
        servers = _servers(options)
        if not servers:
            self.error('Missing required argument "[bootstrap-server]"')
        for server in servers.split(","):
            port = server.strip().rpartition(":")[2]
            if ":" not in server or not port.isdigit():
                self.error("Please provide valid host:port like host1:9091,host2:9092")
        return servers

    def only_action(self, options: argparse.Namespace, actions: Sequence[str]) -> str:
        """Return which of `actions` was given; exit with a usage error if none or more than one was given."""
        given = [action for action in actions if is_given(options, action)]
        if len(given) != 1:
            names = ", ".join(f"--{action.replace('_', '-')}" for action in actions)
            self.error(f"Command must include exactly one action: {names}")
        return given[0]

    def require_action(self, options: argparse.Namespace, action: str, allowed: Mapping[str, Collection[str]]) -> None:
        """Exit with a usage error if an option is given that does not apply to `action`.

        `allowed` maps each option to the actions that it applies to.
        """
        for name, actions in allowed.items():
            if action not in actions:
                self.reject_combination(options, name, [action])

    def reject_combination(self, options: argparse.Namespace, used: str, others: Iterable[str]) -> None:
        """Exit with a usage error if the option `used` is combined with one of the options `others`."""
        if not is_given(options, used):
            return
        for other in others:
            if other != used and is_given(options, other):
                self.error(f'Option "{_flag(used)}" can\'t be used with option "{_flag(other)}"')

    def require(self, options: argparse.Namespace, *names: str) -> None:
        """Exit with a usage error if one of the options `names` is missing."""
        for name in names:
            if not is_given(options, name):
                self.error(f'Missing required argument "{_flag(name)}"')


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=34, width=110)


def _flag(destination: str) -> str:
    return f"[{destination.replace('_', '-')}]"


def is_given(options: argparse.Namespace, name: str) -> bool:
    """Return whether an option was given on the command line."""
    value = getattr(options, name)
    return value is not None and value is not False and value != []


def uses_controllers(options: argparse.Namespace) -> bool:
    """Return whether `--bootstrap-controller` was given."""
    return bool(getattr(options, "bootstrap_controller", None))


def _servers(options: argparse.Namespace) -> str | None:
    servers: str | None = options.bootstrap_server or getattr(options, "bootstrap_controller", None)
    return servers


def warn_deprecated(options: argparse.Namespace, argv: Sequence[str] | None, names: Mapping[str, str]) -> None:
    """Warn on standard error about each deprecated option name in use. `names` maps old names to new names."""
    for argument in sys.argv[1:] if argv is None else argv:
        name = argument.partition("=")[0]
        if name in names:
            print(f"Warning: {name} is deprecated. Use {names[name]} instead.", file=sys.stderr)


def warn_without_metrics(options: argparse.Namespace) -> None:
    """Warn that `--print-metrics`, which is accepted for compatibility with scripts, has no effect."""
    if options.print_metrics:
        print("WARNING: --print-metrics has no effect: this client has no metrics", file=sys.stderr)


# -- properties and clients ------------------------------------------------------------------------------------------


def load_properties(path: str) -> dict[str, str]:
    """Read a Java properties file. Raises ToolError."""
    import javaproperties

    try:
        with open(path, encoding="latin-1") as file:
            return dict(javaproperties.load(file))
    except (OSError, ValueError) as error:
        raise ToolError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def key_values(pairs: Iterable[str] | None) -> dict[str, str]:
    """Parse `key=value` pairs. A value may contain equals signs; without an equals sign, the value is empty."""
    return {key: value for key, _, value in (pair.partition("=") for pair in pairs or ())}


def properties_of(path: str | None, pairs: Iterable[str] | None = None) -> dict[str, str]:
    """Return the properties of the file at `path`, overridden by the `key=value` pairs. Raises ToolError."""
    return {**(load_properties(path) if path else {}), **key_values(pairs)}


def client_properties(options: argparse.Namespace) -> dict[str, str]:
    """Return the client properties of `--command-config`, with bootstrap.servers set. Raises ToolError."""
    return {**properties_of(options.command_config), "bootstrap.servers": _servers(options) or ""}


def client_config(properties: Mapping[str, str], kind: Kind) -> ClientConfig:
    """Return the client configuration with these `properties`, and print its warnings to standard error.

    `kind` is the kind of client. Raises ClientConfigError.
    """
    from headrace_broker.client.config import ClientConfig

    config = ClientConfig.from_properties(properties, kind)
    for warning in config.warnings:
        print(f"WARN {warning}", file=sys.stderr)
    return config


async def open_cluster(config: ClientConfig, *, to_controllers: bool = False) -> Cluster:
    """Connect to the brokers, or to the controllers if `to_controllers` is set. Raises ToolError.

    The timeout is default.api.timeout.ms if the user has set this key, else 5 s.
    """
    from headrace_broker.client.cluster import Cluster
    from headrace_broker.client.controllers import Controllers
    from headrace_broker.client.errors import TimedOutError

    explicit = "default.api.timeout.ms" in config.explicit
    timeout_ms = config.default_api_timeout_ms if explicit else _CONNECT_TIMEOUT_MS
    try:
        return await (Controllers if to_controllers else Cluster).open(config, timeout_ms=timeout_ms)
    except TimedOutError as error:
        servers = ", ".join(f"{host}:{port}" for host, port in config.bootstrap_servers)
        cause = f": {error.__cause__}" if str(error.__cause__ or "") else ""
        kind = "controller" if to_controllers else "broker"
        raise ToolError(f"no {kind} could be reached at {servers} within {timeout_ms / 1000:g} s{cause}") from error


async def wait_for_topic(cluster: Cluster, topic: str, timeout_ms: float) -> TopicView:
    """Wait until the topic exists and return it; warn on standard error after 2 s. Raises ToolError, BrokerError."""
    from headrace_broker.client.errors import TimedOutError

    for wait_ms in (min(_WARN_AFTER_MS, timeout_ms), timeout_ms - _WARN_AFTER_MS):
        try:
            return await cluster.topic(topic, wait_ms)
        except TimedOutError as error:
            if wait_ms == _WARN_AFTER_MS < timeout_ms:
                print(f"WARN waiting for {error.__cause__ or error}", file=sys.stderr)
                continue
            raise ToolError(f"Topic {topic} not present in metadata after {timeout_ms:.0f} ms.") from error
    raise AssertionError("unreachable code: the second attempt returns the topic or raises an error")


@asynccontextmanager
async def admin_client(options: argparse.Namespace, **properties: str) -> AsyncIterator[Admin]:
    """Open an admin client for the bootstrap servers; close the client at the end of the `with` block.

    The argument `a_b="x"` sets the client's property a.b. Raises ClientConfigError, ToolError.
    """
    from headrace_broker.client.admin import Admin

    given = {key.replace("_", "."): value for key, value in properties.items()}
    config = client_config(client_properties(options) | given, "admin")
    cluster = await open_cluster(config, to_controllers=uses_controllers(options))
    try:
        yield await Admin.open(config, cluster=cluster)
    finally:
        await cluster.close()


def broker_message(error: ClientError) -> str:
    """Return the error's message without its prefix, which names the failed object and the error code."""
    from headrace_broker.client.errors import BrokerError

    if isinstance(error, BrokerError):
        return str(error).removeprefix(f"{error.subject}: {error.code.name if error.code else ''}: ")
    return str(error)


# -- running ---------------------------------------------------------------------------------------------------------


def run(work: Coroutine[Any, Any, int], *, on_error: Callable[[str], None] | None = None, fast: bool = False) -> int:
    """Run a tool's coroutine and return the tool's exit status. If `fast` is set, use uvloop.

    After an error, call `on_error` with the error text, or print the text to standard error if `on_error` is None, and
    return 1. SIGINT and SIGTERM cancel the coroutine; the exit status is then 130 or 143.
    """
    import logging

    from headrace_broker.client.errors import ClientError

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="[%(asctime)s] %(levelname)s %(message)s")
    report = on_error or (lambda text: print(text, file=sys.stderr))
    try:
        with asyncio.Runner(loop_factory=_fast_loop() if fast else None) as runner:
            return runner.run(_cancelled_by_sigterm(work))
    except (ClientError, ToolError) as error:
        report(str(error))
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


async def run_in_thread(function: Callable[[], T]) -> T:
    """Run a blocking function in a daemon thread, so that a blocked read or write does not keep the process alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def complete(value: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        try:
            value, error = function(), None
        except BaseException as failure:  # noqa: BLE001  (passed on to the caller)
            value, error = None, failure
        try:
            loop.call_soon_threadsafe(complete, value, error)
        except RuntimeError:
            return  # the event loop is closed, so no caller waits for the result

    threading.Thread(target=work, daemon=True).start()
    return await done


def run_and_exit(main: Callable[[], int]) -> NoReturn:
    """Run a tool and exit with the tool's status. If the reader of stdout has closed the pipe, print no error."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = _BROKEN_PIPE
    except KeyboardInterrupt:
        status = _INTERRUPTED
    sys.exit(status)
