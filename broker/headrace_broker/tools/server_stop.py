"""kafka-server-stop: send SIGTERM to this user's local brokers, or only to brokers with a given role or node id.

The tool prints the process id, the node id and the data directories of each broker that it stops. Brokers are
recognized by their command lines (`headrace broker start`, `kafka-server-start`, or the module that they run). Brokers
that another process manages, such as the embedded broker of a Connect worker, are not stopped. As in Kafka's script,
the environment variable `SIGNAL` selects another signal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace_broker.server.config import BrokerConfig, ConfigError
from headrace_broker.server.main import properties_without_file
from headrace_broker.tools.command_line import Parser, load_properties, run_and_exit
from headrace_broker.tools.tool_error import ToolError

_OWNED = ("--watch-fd", "--parent-pid")
_OVERRIDES = ("--override", "--property")


@dataclass(frozen=True, slots=True)
class BrokerCommand:
    """The properties file (None if not given) and the overridden properties on a broker's command line."""

    file: str | None
    overrides: dict[str, str]

    def properties(self, directory: str) -> dict[str, str]:
        """Return the broker's properties. The properties file's path is relative to `directory`. Raises ToolError."""
        if self.file is None:
            return properties_without_file(self.overrides)
        return {**load_properties(str(Path(directory, self.file))), **self.overrides}

    def describe(self, directory: str) -> str:
        """Return the broker's node id and its data directories, which are relative to `directory`."""
        try:
            config = BrokerConfig.from_properties(self.properties(directory))
        except (ToolError, ConfigError) as error:
            reason = str(error).replace("\n", "; ")
            return f"node with an unknown id, working directory {directory}: cannot read its configuration: {reason}"
        return f"node {config.node_id}, directories {', '.join(str(Path(directory, each)) for each in config.all_dirs)}"


def parse_command(command: Sequence[str]) -> BrokerCommand | None:
    """Parse a process's command line.

    Return None if the process is not a broker, or if it is a broker that another process manages.
    """
    arguments = _broker_arguments(command)
    if arguments is None or any(argument.partition("=")[0] in _OWNED for argument in arguments):
        return None
    file = None
    overrides = {}
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if name in _OVERRIDES:
            key, _, text = (value if equals else next(remaining, "")).partition("=")
            overrides[key.strip()] = text.strip()
        elif name in ("--cluster-id", "--ready-fd", "-name"):
            if not equals:
                next(remaining, None)
        elif not argument.startswith("-"):
            file = argument
    return BrokerCommand(file, overrides)


def _broker_arguments(command: Sequence[str]) -> list[str] | None:
    """Return the broker's arguments from a Python command line, or None if the command does not run a broker."""
    words = list(command[1:])
    if "-daemon" in words:  # this process only starts the broker's process
        return None
    for index, word in enumerate(words[:3]):
        name = os.path.basename(word)
        if word == "headrace_broker.server" and words[index - 1] == "-m":
            return words[index + 1 :]
        if name in ("kafka-server-start", "kafka-server-start.sh") or word == "headrace_broker.tools.server_start":
            return words[index + 1 :]
        if (name == "headrace" or word == "headrace.cli.main") and words[index + 1 : index + 3] == ["broker", "start"]:
            return words[index + 3 :]
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Stop brokers and return the exit code, which is 1 if there are no brokers to stop."""
    parser = Parser("kafka-server-stop", "Stop the brokers of this user on this machine.")
    parser.add_argument("--process-role", metavar="ROLES", help="Only brokers with these process.roles.")
    parser.add_argument("--node-id", metavar="ID", help="Only the broker with this node.id; overrides --process-role.")
    options = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if options.node_id is not None and options.process_role is not None:
        print("When both node-id and process-role are provided, the value for node-id will take precedence")
    number = _signal(parser, os.environ.get("SIGNAL", "TERM"))
    stopped = 0
    for pid, command, directory in _brokers():
        try:
            if not _is_selected(options, command, directory):
                continue
            description = command.describe(directory)
            os.kill(pid, number)
        except (ToolError, ProcessLookupError) as error:
            print(f"process {pid}: {error}", file=sys.stderr)
            continue
        print(f"Stopping process {pid}: {description}")
        stopped += 1
    if not stopped:
        print("No kafka server to stop")
    return 0 if stopped else 1


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _signal(parser: Parser, name: str) -> signal.Signals:
    try:
        return signal.Signals(int(name)) if name.isdigit() else signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        parser.error(f"SIGNAL={name}: unknown signal; set a name such as TERM, or a number such as 15")


def _is_selected(options: argparse.Namespace, command: BrokerCommand, directory: str) -> bool:
    if options.node_id is None and options.process_role is None:
        return True
    properties = command.properties(directory)
    if options.node_id is not None:
        return bool(properties.get("node.id", properties.get("broker.id")) == options.node_id)
    roles = {role.strip() for role in properties.get("process.roles", "broker,controller").split(",")}
    return roles == {role.strip() for role in options.process_role.split(",")}


def _brokers() -> Iterator[tuple[int, BrokerCommand, str]]:
    """Yield the pid, command line and working directory of each of this user's brokers."""
    import psutil

    user = os.getuid()
    for process in psutil.process_iter(["pid", "uids", "cmdline"]):
        uids, words = process.info["uids"], process.info["cmdline"]
        if uids is None or uids.real != user or not words or process.pid == os.getpid():
            continue
        command = parse_command(words)
        if command is None:
            continue
        try:
            yield process.pid, command, process.cwd()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # the process has exited


if __name__ == "__main__":
    entry()
