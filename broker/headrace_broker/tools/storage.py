"""kafka-storage: format a node's log directories and show their metadata (Kafka's StorageTool)."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from headrace_broker.log.checkpoints import META_PROPERTIES_FILE, MalformedFileError, decode_meta_properties
from headrace_broker.metadata.cluster import METADATA_VERSION
from headrace_broker.tools.command_line import Parser, load_properties, run_and_exit
from headrace_broker.tools.release_versions import (
    METADATA,
    feature_dependencies,
    metadata_level,
    parse_feature,
    version_mapping,
)
from headrace_broker.tools.tool_error import ToolError

_COMMANDS = ("info", "format", "random-uuid", "version-mapping", "feature-dependencies")
_UNSUPPORTED = ("initial_controllers", "add_scram")
_METADATA_VERSION = "4.3-IV0"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    if options.command not in _COMMANDS:
        parser.error(f"invalid choice: '{options.command}' (choose from {', '.join(_COMMANDS)})")
    try:
        return _run_action(parser, options)
    except ToolError as error:
        import sys

        print(error, file=sys.stderr)
        return 1


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-storage", "Format a node's log directories, or show their metadata.")
    add = parser.add_argument
    add("command", metavar="|".join(_COMMANDS), help="The command to run.")
    add("-c", "--config", metavar="FILE", help="The node's properties file.")
    add("-t", "--cluster-id", metavar="ID", help="format: the cluster id, for example from random-uuid.")
    add("-g", "--ignore-formatted", action="store_true", help="format: skip directories that are already formatted.")
    add("-s", "--standalone", action="store_true", help="format: the node is the only voter of its quorum.")
    add("-N", "--no-initial-controllers", action="store_true", help="format: do not define the initial quorum.")
    add("-I", "--initial-controllers", metavar="LIST", help=argparse.SUPPRESS)
    add("-S", "--add-scram", action="append", help=argparse.SUPPRESS)
    add("-r", "--release-version", metavar="X.Y", help="version-mapping, format: a Kafka release: 4.3 or 4.3-IV0.")
    add(
        "-f",
        "--feature",
        action="append",
        metavar="NAME=LEVEL",
        help="feature-dependencies, format: a feature and its level.",
    )
    return parser


def _run_action(parser: Parser, options: argparse.Namespace) -> int:
    if options.command == "random-uuid":
        from headrace_broker.protocol.uuid_text import encode_uuid
        from headrace_broker.server.data_dirs import random_uuid

        print(encode_uuid(random_uuid()))
        return 0
    if options.command == "version-mapping":
        print("\n".join(version_mapping(options.release_version)))
        return 0
    if options.command == "feature-dependencies":
        parser.require(options, "feature")
        for name, level in map(parse_feature, options.feature):
            print("\n".join(feature_dependencies(name, level)))
        return 0
    parser.require(options, "config")
    if options.command == "info":
        lines, status = info(_directories(options.config)[0])
        print("\n".join(lines))
        return status
    parser.require(options, "cluster_id")
    for name in _UNSUPPORTED:
        if getattr(options, name):
            parser.error(f"--{name.replace('_', '-')}: not supported yet")
    _check_version(options)
    for line in _format(options):
        print(line)
    return 0


def _check_version(options: argparse.Namespace) -> None:
    """Raise ToolError unless metadata.version has the supported level and all other features have level 0."""
    requested = dict(map(parse_feature, options.feature or ()))
    if options.release_version is not None:
        requested[METADATA] = metadata_level(options.release_version)
    supported = {METADATA: METADATA_VERSION}
    for name, level in requested.items():
        if level != supported.get(name, 0):
            raise ToolError(
                f"{name}={level} is not supported: this version of headrace supports only metadata.version "
                f"{_METADATA_VERSION} ({METADATA_VERSION}) and level 0 of all other features"
            )


def _directories(path: str) -> tuple[list[str], str]:
    """Return all log directories and the metadata log's directory from the properties file. Raises ToolError."""
    from headrace_broker.server.config import BrokerConfig, ConfigError

    try:
        config = BrokerConfig.from_properties(load_properties(path))
    except ConfigError as error:
        raise ToolError("\n".join(f"{path}: {line}" for line in error.errors)) from None
    return list(config.all_dirs), config.metadata_dir


def _format(options: argparse.Namespace) -> list[str]:
    from headrace_broker.server.config import BrokerConfig
    from headrace_broker.server.data_dirs import StartError, is_formatted
    from headrace_broker.server.main import format_storage

    directories, metadata_dir = _directories(options.config)
    properties = load_properties(options.config)
    if options.standalone and BrokerConfig.from_properties(properties).originals.get("controller.quorum.voters"):
        raise ToolError(
            "You cannot specify controller.quorum.voters and format the node with --standalone: leave out one of them"
        )
    formatted = [path for path in directories if is_formatted(path)]
    if formatted and not options.ignore_formatted:
        raise ToolError(
            f"Log directory {formatted[0]} is already formatted. Use --ignore-formatted to ignore this directory and "
            "format the others."
        )
    try:
        format_storage(properties, options.cluster_id)
    except (StartError, OSError) as error:
        raise ToolError(str(error)) from None
    if len(formatted) == len(directories):
        return ["All of the log directories are already formatted."]
    return [
        f"Formatting {'metadata' if path == metadata_dir else 'data'} directory {path} "
        f"with metadata.version {_METADATA_VERSION}."
        for path in directories
        if path not in formatted
    ]


def info(directories: Sequence[str]) -> tuple[list[str], int]:
    """Return the output lines of `kafka-storage info`, and the exit code, which is 1 if a directory has a problem."""
    found: list[str] = []
    problems: list[str] = []
    meta: dict[str, str] | None = None
    for path in sorted(directories):
        if not os.path.isdir(path):
            problems.append(f"{path} is not a directory" if os.path.exists(path) else f"{path} does not exist")
            continue
        found.append(path)
        file = os.path.join(path, META_PROPERTIES_FILE)
        if not os.path.exists(file):
            problems.append(f"{path} is not formatted.")
            continue
        try:
            with open(file, "rb") as stream:
                own = decode_meta_properties(stream.read())
        except (OSError, MalformedFileError) as error:
            problems.append(f"Error loading {file}: {error}")
            continue
        meta = meta or own
        for key, what in (("cluster.id", "cluster IDs"), ("node.id", "node IDs")):
            if own.get(key) != meta.get(key):
                problems.append(f"Mismatched {what} between storage directories.")
                break
    return _info_lines(found, meta, problems), 1 if problems else 0


def _info_lines(found: Sequence[str], meta: dict[str, str] | None, problems: Sequence[str]) -> list[str]:
    lines: list[str] = []
    if found:
        lines += [f"Found log director{'y' if len(found) == 1 else 'ies'}:", *(f"  {path}" for path in found), ""]
    if meta is not None:
        pairs = ", ".join(f"{key}={meta[key]}" for key in sorted(meta))
        lines += [f"Found metadata: {{{pairs}}}", ""]
    if problems:
        lines += [f"Found problem{'' if len(problems) == 1 else 's'}:", *(f"  {text}" for text in problems), ""]
    return lines


if __name__ == "__main__":
    entry()
