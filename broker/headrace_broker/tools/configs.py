"""kafka-configs: describe and alter the configs of topics and brokers (Kafka's ConfigCommand).

The tool rejects the entity types that it does not support yet: users, clients, ips, groups, client metrics and broker
loggers.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_broker.tools.command_line import (
    Parser,
    admin_client,
    broker_message,
    is_given,
    properties_of,
    run,
    run_and_exit,
    uses_controllers,
)
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.admin import Admin
    from headrace_broker.protocol.messages.describe_configs import DescribeConfigsResourceResult

_TOPICS, _BROKERS = "topics", "brokers"
_KINDS = {_TOPICS: 2, _BROKERS: 4}
_UNSUPPORTED = ("users", "clients", "ips", "client-metrics", "groups", "broker-loggers")
_SOURCES = (
    "UNKNOWN",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    "DEFAULT_CONFIG",
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "DYNAMIC_CLIENT_METRICS_CONFIG",
    "DYNAMIC_GROUP_CONFIG",
)
_DYNAMIC_TOPIC, _DYNAMIC_BROKER, _DYNAMIC_DEFAULT_BROKER = 1, 2, 3
_KEY = re.compile(r"[$a-zA-Z0-9._-]+\Z")
_OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    kind, name = _target(parser, options)
    parser.required_server(options)
    parser.only_action(options, ("describe", "alter"))
    if options.describe and kind == _TOPICS and uses_controllers(options):
        parser.error("--bootstrap-controller: controllers do not describe topics; use --bootstrap-server")
    if options.alter and name is None:
        parser.error("An entity name must be specified for every entity type")
    if options.alter and not (options.add_config or options.add_config_file or options.delete_config):
        parser.error(
            "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter"
        )
    if kind == _BROKERS and name and not name.isdigit():
        parser.error(f"The entity name for brokers must be a valid integer broker id, but it is: {name}")
    return run(_run_action(options, kind, name))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-configs", "Show and change the configs of topics and brokers.")
    parser.add_bootstrap_server()
    parser.add_bootstrap_controller()
    parser.add_command_config()
    add = parser.add_argument
    add("--describe", action="store_true", help="Show configs.")
    add("--alter", action="store_true", help="Change configs.")
    add("--all", action="store_true", help="With --describe: include defaults.")
    add("--add-config", metavar="K=V,…", help="Configs to set; put a value with commas into square brackets.")
    add("--add-config-file", metavar="FILE", help="A properties file with configs to set.")
    add("--delete-config", action="append", metavar="K,…", help="Configs to delete.")
    add("--entity-type", action="append", metavar="TYPE", help="topics or brokers.")
    add("--entity-name", metavar="NAME", help="The topic, or the broker's id.")
    add("--entity-default", action="store_true", help="The defaults of all brokers.")
    add("--topic", metavar="NAME", help="The topic.")
    add("--broker", metavar="ID", help="The broker's id.")
    add("--broker-defaults", action="store_true", help="The defaults of all brokers.")
    for name in ("--user", "--client", "--ip", "--group", "--client-metrics", "--broker-logger"):
        add(name, help=argparse.SUPPRESS)
    return parser


def _target(parser: Parser, options: argparse.Namespace) -> tuple[str, str | None]:
    """Return (entity type, entity name). The name is "" for the default entity and None for all entities."""
    for option in ("user", "client", "ip", "group", "client_metrics", "broker_logger"):
        if is_given(options, option):
            parser.error(
                f"--{option.replace('_', '-')}: not supported yet; only topic and broker configs are supported"
            )
    named: list[tuple[str, str | None]] = []
    for kind, name in ((_TOPICS, options.topic), (_BROKERS, options.broker)):
        if name is not None:
            named.append((kind, name))
    if options.broker_defaults:
        named.append((_BROKERS, ""))
    for kind in options.entity_type or ():
        if kind in _UNSUPPORTED:
            parser.error(f"--entity-type {kind}: not supported yet; only topic and broker configs are supported")
        if kind not in _KINDS:
            parser.error(f"Invalid entity type {kind}, the entity type must be one of topics, brokers")
        named.append((kind, "" if options.entity_default else options.entity_name))
    if len(named) != 1:
        parser.error("Exactly one entity must be specified: --entity-type, --topic, --broker or --broker-defaults")
    return named[0]


async def _run_action(options: argparse.Namespace, kind: str, name: str | None) -> int:
    async with admin_client(options) as admin:
        if options.alter:
            await _alter(admin, options, kind, name or "")
            return 0
        return await _describe(admin, kind, name, shows_all=options.all)


# -- alter -----------------------------------------------------------------------------------------------------------


def parse_additions(text: str) -> dict[str, str]:
    """Parse `a=b,c=[d,e]` into {key: value}. Raises ToolError."""
    additions = {}
    for pair in re.split(f",{_OUTSIDE_BRACKETS}", text):
        parts = re.split(rf"\s*=\s*{_OUTSIDE_BRACKETS}", pair)
        if len(parts) != 2:
            raise ToolError(
                'Invalid entity config: all configs to be added must be in the format "key=val" or  '
                '"key=[val1,val2]" to group values which contain commas.'
            )
        additions[parts[0].strip()] = parts[1].replace("[", "").replace("]", "").strip()
    return additions


def _changes(options: argparse.Namespace) -> list[tuple[str, int, str | None]]:
    from headrace_broker.client.admin import DELETE, SET

    additions = properties_of(options.add_config_file)
    additions |= parse_additions(options.add_config) if options.add_config else {}
    removals = [key.strip() for text in options.delete_config or () for key in text.split(",")]
    for key in (*additions, *removals):
        if not _KEY.match(key):
            raise ToolError(f"Invalid character found for config key: {key}")
    changes: list[tuple[str, int, str | None]] = [(key, DELETE, "") for key in removals]
    return changes + [(key, SET, value) for key, value in additions.items()]


async def _alter(admin: Admin, options: argparse.Namespace, kind: str, name: str) -> None:
    changes = _changes(options)
    error = (await admin.incremental_alter_configs({(_KINDS[kind], name): changes}))[_KINDS[kind], name]
    if error is not None:
        raise ToolError(broker_message(error))
    if name:
        print(f"Completed updating config for {kind[:-1]} {name}.")
    else:
        print(f"Completed updating default config for {kind} in the cluster.")


# -- describe --------------------------------------------------------------------------------------------------------


async def _describe(admin: Admin, kind: str, name: str | None, *, shows_all: bool) -> int:
    from headrace_broker.client.errors import BrokerError

    existing = await _existing(admin, kind)
    if name and name not in existing and not shows_all:
        print(f"The {kind[:-1]} '{name}' doesn't exist and doesn't have dynamic config.")
        return 0
    status = 0
    names = [name] if name is not None else [*existing, *([""] if kind == _BROKERS else [])]
    for entity, entries in (await admin.describe_configs([(_KINDS[kind], item) for item in names])).items():
        if isinstance(entries, BrokerError):
            print(broker_message(entries), file=sys.stderr)
            status = 1
            continue
        for line in description(kind, entity[1], entries, shows_all=shows_all):
            print(line)
    return status


async def _existing(admin: Admin, kind: str) -> list[str]:
    if kind == _TOPICS:
        return await admin.list_topics(include_internal=True)
    return [str(node.node_id) for node in (await admin.describe_cluster()).nodes]


def description(
    kind: str, name: str, entries: Sequence[DescribeConfigsResourceResult], *, shows_all: bool
) -> list[str]:
    """Return the lines of --describe for one entity: its dynamic configs, or all configs if `shows_all` is set."""
    if kind == _BROKERS and not name:
        title, source = f"Default configs for {kind} in the cluster are:", _DYNAMIC_DEFAULT_BROKER
    else:
        title = f"{'All' if shows_all else 'Dynamic'} configs for {kind[:-1]} {name} are:"
        source = _DYNAMIC_TOPIC if kind == _TOPICS else _DYNAMIC_BROKER
    shown = [entry for entry in entries if shows_all or entry.config_source == source]
    return [title, *(_line(entry) for entry in sorted(shown, key=lambda entry: entry.name))]


def _line(entry: DescribeConfigsResourceResult) -> str:
    synonyms = ", ".join(
        f"{_source(synonym.source)}:{synonym.name}={_java(synonym.value)}" for synonym in entry.synonyms
    )
    sensitive = "true" if entry.is_sensitive else "false"
    return f"  {entry.name}={_java(entry.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _source(number: int) -> str:
    return _SOURCES[number] if 0 <= number < len(_SOURCES) else _SOURCES[0]


def _java(value: str | None) -> str:
    return "null" if value is None else value


if __name__ == "__main__":
    entry()
