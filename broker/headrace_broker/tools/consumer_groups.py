"""kafka-consumer-groups: list, describe and delete consumer groups, and reset and delete their offsets.

Like Kafka's ConsumerGroupCommand, the tool prints errors on standard output, and then exits with status 1.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace_broker.tools import group_tables as tables
from headrace_broker.tools.command_line import Parser, admin_client, is_given, run, run_and_exit

if TYPE_CHECKING:
    from headrace_broker.client.admin import Admin
    from headrace_broker.client.admin_groups import GroupDescription, GroupListing

_ACTIONS = ("list", "describe", "delete", "reset_offsets", "delete_offsets", "validate_regex")
_ACTIONS_OF_OPTION = {
    **dict.fromkeys(("members", "offsets", "verbose"), ("describe",)),
    "state": ("describe", "list"),
    "type": ("list",),
}
"""{option: the actions that allow it}."""
_SCENARIOS = (
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
    "to_earliest",
    "to_latest",
    "to_current",
    "from_file",
)
_STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
_TYPES = ("Classic", "Consumer")
_REBALANCING = frozenset(("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = _parser()
    options = parser.parse(argv)
    _check(parser, options)
    if options.validate_regex is not None:
        return _validate_regex(options.validate_regex)
    return run(
        _run_action(parser, options),
        on_error=lambda text: print(f"\nError: Executing consumer group command failed due to {text}"),
    )


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


def _parser() -> Parser:
    parser = Parser("kafka-consumer-groups", "List, describe or delete consumer groups, and manage their offsets.")
    parser.add_bootstrap_server()
    parser.add_command_config()
    add = parser.add_argument
    add("--list", action="store_true", help="List all consumer groups.")
    add("--describe", action="store_true", help="Show groups with their committed offsets and lag.")
    add("--delete", action="store_true", help="Delete groups without members.")
    add("--reset-offsets", action="store_true", help="Set the committed offsets of a group without members.")
    add("--delete-offsets", action="store_true", help="Delete committed offsets of topics that no member reads.")
    add("--validate-regex", metavar="REGEX", help="Check a regular expression.")
    add("--group", action="append", metavar="ID", help="A group. May be repeated.")
    add("--all-groups", action="store_true", help="All groups.")
    add("--topic", action="append", metavar="T[:0,1]", help="A topic, or some of its partitions. May be repeated.")
    add("--all-topics", action="store_true", help="All topics for which the group has committed offsets.")
    add("--members", action="store_true", help="With --describe: the members.")
    add("--offsets", action="store_true", help="With --describe: offsets and lag (the default).")
    add(
        "--state",
        nargs="?",
        const="",
        metavar="S,…",
        help="With --describe: show the state. With --list: show states; with a value, only groups in these states.",
    )
    add("--type", nargs="?", const="", metavar="T,…", help="With --list: show types, or only groups of these types.")
    add("--verbose", action="store_true", help="With --describe: more columns.")
    add("--dry-run", action="store_true", help="Only print the plan (the default).")
    add("--execute", action="store_true", help="Commit the planned offsets.")
    add("--export", action="store_true", help="Print the plan as CSV, for --from-file.")
    add("--to-offset", type=int, metavar="N", help="Reset to this offset.")
    add("--shift-by", type=int, metavar="N", help="Add N to the committed offset; N may be negative.")
    add("--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="Reset to the first record at or after this time.")
    add("--by-duration", metavar="PnDTnHnMnS", help="Reset to the first record that is not older than this duration.")
    add("--to-earliest", action="store_true", help="Reset to the first record.")
    add("--to-latest", action="store_true", help="Reset to the log end offset.")
    add("--to-current", action="store_true", help="Reset to the committed offset, or to the end if there is none.")
    add("--from-file", metavar="FILE", help="Reset to the offsets in a CSV file: [group,]topic,partition,offset.")
    add("--timeout", type=int, metavar="MS", help="Timeout of a request. Default: 60000.")
    return parser


def _check(parser: Parser, options: argparse.Namespace) -> None:
    action = parser.only_action(options, _ACTIONS)
    if action == "validate_regex":
        return
    parser.required_server(options)
    if action in ("describe", "delete", "reset_offsets") and not (options.group or options.all_groups):
        parser.error(f"Option [{action.replace('_', '-')}] takes one of these options: [group], [all-groups]")
    parser.reject_combination(options, "group", ["all_groups", "list"])
    parser.require_action(options, action, _ACTIONS_OF_OPTION)
    if action == "describe":
        if sum(is_given(options, name) for name in ("members", "offsets", "state")) > 1:
            parser.error("Option [describe] takes at most one of these options: [members], [offsets], [state]")
        if options.state:
            parser.error("Option [describe] does not take a value for [state]")
        parser.reject_combination(options, "topic", ["describe"])
    elif action == "delete" and options.topic:
        parser.error("The consumer does not support topic-specific offset deletion from a consumer group.")
    elif action == "delete_offsets" and not (options.group and options.topic):
        parser.error("Option [delete-offsets] takes the following options: [group], [topic]")
    elif action == "reset_offsets":
        _check_reset(parser, options)


def _check_reset(parser: Parser, options: argparse.Namespace) -> None:
    if options.dry_run and options.execute:
        parser.error("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    given = [name for name in _SCENARIOS if is_given(options, name)]
    if len(given) > 1:
        parser.reject_combination(options, given[0], given[1:])
    if not given:
        names = ", ".join(f"[{name.replace('_', '-')}]" for name in _SCENARIOS)
        parser.error(f"Option '[reset-offsets]' requires one of the following scenarios: {names}")
    if not (options.all_topics or options.topic or options.from_file):
        parser.error("One of the reset scopes should be defined: --all-topics, --topic.")
    if not options.dry_run and not options.execute:
        print(
            "WARN: No action will be performed as the --execute option is missing. Add --dry-run to suppress this "
            "warning.",
            file=sys.stderr,
        )


def _validate_regex(text: str) -> int:
    try:
        re.compile(text)
    except re.error as error:
        print(f"The regular expression `{text}` is invalid: {error}.")
        return 1
    print(f"The regular expression `{text}` is valid.")
    return 0


async def _run_action(parser: Parser, options: argparse.Namespace) -> int:
    from headrace_broker.tools import group_changes

    timeout = {} if options.timeout is None else {"default_api_timeout_ms": str(options.timeout)}
    async with admin_client(options, **timeout) as admin:
        if options.list:
            return await _list(parser, admin, options)
        groups = list(options.group or ())
        if options.all_groups:
            groups = [listing.group_id for listing in await _consumer_groups(admin)]
        if options.describe:
            return await _describe(admin, options, groups)
        if options.delete:
            return await group_changes.delete_groups(admin, groups)
        if options.delete_offsets:
            return await group_changes.delete_offsets(admin, groups[-1], options.topic)
        return await group_changes.reset_offsets(admin, options, groups)


# -- list ------------------------------------------------------------------------------------------------------------


def _parse_choices(parser: Parser, text: str | None, valid: Sequence[str], what: str) -> list[str]:
    """Parse a list such as `stable,empty` into names in `valid`; exit with a usage error for an invalid name.

    The error text uses `what`, for example `state`, as the noun for the listed names.
    """
    known = {name.lower(): name for name in valid}
    names = [name.strip().lower() for name in text.split(",")] if text else []
    if not all(name in known for name in names):
        parser.error(f"Invalid {what} list '{text}'. Valid {what}s are: {', '.join(valid)}")
    return [known[name] for name in names]


async def _consumer_groups(admin: Admin, states: Sequence[str] = (), types: Sequence[str] = ()) -> list[GroupListing]:
    """Return the groups of consumers. Groups with other protocol types, such as `connect`, are omitted."""
    return [
        listing
        for listing in await admin.list_groups(states=states, types=types)
        if listing.protocol_type in ("", "consumer")
        and listing.type.lower() in ("", "classic", "consumer")
        and (not states or listing.state in states)
        and (not types or listing.type.lower() in {name.lower() for name in types})
    ]


async def _list(parser: Parser, admin: Admin, options: argparse.Namespace) -> int:
    with_state, with_type = options.state is not None, options.type is not None
    states = _parse_choices(parser, options.state, _STATES, "state")
    types = _parse_choices(parser, options.type, _TYPES, "type")
    listings = await _consumer_groups(admin, states, types)
    if not with_state and not with_type:
        for listing in listings:
            print(listing.group_id)
        return 0
    rows = [(item.group_id, item.type.capitalize() or "Unknown", item.state or "Unknown") for item in listings]
    print("\n".join(tables.groups_table(rows, with_type=with_type, with_state=with_state)))
    return 0


# -- describe --------------------------------------------------------------------------------------------------------


async def _describe(admin: Admin, options: argparse.Namespace, groups: Sequence[str]) -> int:
    from headrace_broker.client.errors import BrokerError

    status = 0
    for group_id, group in sorted((await admin.describe_groups(groups)).items()):
        if isinstance(group, BrokerError):
            raise group
        if group.state == "Dead":
            print(f"\nError: Consumer group '{group_id}' does not exist.")
            status = 1
            continue
        if group.state == "Empty":
            print(f"\nConsumer group '{group_id}' has no active members.", file=sys.stderr)
        elif group.state in _REBALANCING:
            print(f"\nWarning: Consumer group '{group_id}' is rebalancing.", file=sys.stderr)
        for line in await _lines(admin, options, group):
            print(line)
    return status


async def _lines(admin: Admin, options: argparse.Namespace, group: GroupDescription) -> list[str]:
    if options.members:
        members = [
            tables.MemberRow(
                member.member_id,
                member.group_instance_id or "",
                member.client_host,
                member.client_id,
                member.assignment or (),
            )
            for member in group.members
        ]
        return tables.members_table(group.group_id, members, verbose=options.verbose)
    if options.state is not None:
        node = admin.cluster.view.nodes[group.coordinator_id]
        coordinator = f"{node.host}:{node.port}  ({node.node_id})"
        return tables.state_table(
            group.group_id, coordinator, group.protocol, group.state, len(group.members), verbose=options.verbose
        )
    rows = await _offset_rows(admin, group)
    return tables.offsets_table(group.group_id, rows, verbose=options.verbose) if rows else []


async def _offset_rows(admin: Admin, group: GroupDescription) -> list[tables.OffsetRow]:
    """Return one row for each partition that is assigned to a member or has a committed offset.

    The rows are grouped by member; the member with the most partitions is first. Partitions without a member are last.
    """
    from headrace_broker.tools.group_changes import end_offsets

    committed = {item: offset for item, offset in (await admin.list_group_offsets(group.group_id)).items() if offset}
    owners = [
        (member.assignment, member.member_id, member.client_host, member.client_id)
        for member in sorted(group.members, key=lambda member: -len(member.assignment or ()))
        if member.assignment
    ]
    assigned = {item for partitions, *_ in owners for item in partitions}
    rest = tuple(item for item in committed if item not in assigned)
    ends = await end_offsets(admin, [*assigned, *rest])
    rows = []
    for partitions, *owner in [*owners, (rest, tables.MISSING, tables.MISSING, tables.MISSING)]:
        for topic, partition in sorted(partitions):
            offset = committed.get((topic, partition))
            epoch = offset.leader_epoch if offset is not None and offset.leader_epoch >= 0 else None
            end = ends.get((topic, partition))
            row = tables.OffsetRow(topic, partition, offset.offset if offset else None, end, epoch, *owner)
            rows.append(row)
    return rows


if __name__ == "__main__":
    entry()
