"""Implements three actions of kafka-consumer-groups: delete groups, delete offsets of a group, and reset offsets."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from headrace_broker.client.admin import Admin, values_or_raise
from headrace_broker.client.cluster_view import TopicView
from headrace_broker.client.errors import BrokerError
from headrace_broker.client.offsets import EARLIEST, LATEST, OffsetAndMetadata
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.tools import group_tables as tables
from headrace_broker.tools import offset_resets as resets
from headrace_broker.tools.command_line import broker_message
from headrace_broker.tools.tool_error import ToolError

_INACTIVE = ("Empty", "Dead")
_WHOLE_REQUEST_ERRORS = (
    ErrorCode.INVALID_GROUP_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.NON_EMPTY_GROUP,
)
_JAVA_EXCEPTIONS = {ErrorCode.NON_EMPTY_GROUP: "GroupNotEmptyException"}


def java_error(error: BrokerError) -> str:
    """Format an error like the Java exception that Kafka's tool prints; scripts search for the exception's name."""
    code = error.code or ErrorCode.UNKNOWN_SERVER_ERROR
    name = _JAVA_EXCEPTIONS.get(code) or "".join(word.capitalize() for word in code.name.split("_")) + "Exception"
    return f"org.apache.kafka.common.errors.{name}: {broker_message(error)}"


# -- deleting --------------------------------------------------------------------------------------------------------


async def delete_groups(admin: Admin, groups: Sequence[str]) -> int:
    """Delete groups, print the results and return the exit code."""
    results = await admin.delete_groups(groups)
    deleted = ", ".join(f"'{group}'" for group, error in results.items() if error is None)
    failed = {group: error for group, error in results.items() if error is not None}
    if not failed:
        print(f"Deletion of requested consumer groups ({deleted}) was successful.")
        return 0
    print("\nError: Deletion of some consumer groups failed:")
    for group, error in failed.items():
        print(f"* Group '{group}' could not be deleted due to: {java_error(error)}")
    if deleted:
        print(f"\nThese consumer groups were deleted successfully: {deleted}")
    return 1


async def delete_offsets(admin: Admin, group: str, arguments: Sequence[str]) -> int:
    """Delete a group's offsets for the topics or partitions in `arguments`, and print the results.

    Return the exit code.
    """
    partitions, topics = resets.parse_topics(arguments)
    results: dict[TopicPartition, str | None] = {}
    for name, topic in (await admin.describe_topics(topics)).items() if topics else ():
        if isinstance(topic, BrokerError):
            results[name, -1] = java_error(topic)
        else:
            partitions += [(name, view.partition) for view in topic.partitions]
    request_error = None
    try:
        for item, error in (await admin.delete_group_offsets(group, partitions)).items():
            results[item] = None if error is None else java_error(error)
    except BrokerError as error:
        request_error = error
        results |= dict.fromkeys(partitions, java_error(error))
    if request_error is not None:
        if request_error.code in _WHOLE_REQUEST_ERRORS:
            print(f"\nError: {broker_message(request_error)}")
        else:
            print(f"\nError: Encountered some unknown error: {request_error.code}")
    elif any(results.values()):
        print("\nError: Encountered some partition-level error, see the follow-up details.")
    else:
        print(f"Request succeeded for deleting offsets from group {group}.")
    print("\n".join(tables.deleted_offsets_table(results)))
    return 1 if any(results.values()) else 0


# -- resetting -------------------------------------------------------------------------------------------------------


async def reset_offsets(admin: Admin, options: argparse.Namespace, groups: Sequence[str]) -> int:
    """Compute new offsets for groups without members, and commit them if --execute is set. Return the exit code."""
    status = 0
    plans: dict[str, resets.OffsetPlan] = {}
    for group_id, group in (await admin.describe_groups(groups)).items():
        if isinstance(group, BrokerError):
            raise group
        if group.state in _INACTIVE:
            plans[group_id] = await _reset_group(admin, options, group_id, groups)
            continue
        print(
            f"\nError: Assignments can only be reset if the group '{group_id}' is inactive, "
            f"but the current state is {group.state}."
        )
        plans[group_id] = {}
        status = 1
    if options.export:
        print(resets.to_csv(plans, with_group=len(options.group or ()) != 1))
    else:
        print("\n".join(tables.resets_table(plans)))
    return status


async def _reset_group(
    admin: Admin, options: argparse.Namespace, group_id: str, groups: Sequence[str]
) -> resets.OffsetPlan:
    committed = {
        item: offset.offset for item, offset in (await admin.list_group_offsets(group_id)).items() if offset is not None
    }
    partitions = await _partitions_to_reset(admin, options, committed)
    plan = await _plan_offsets(admin, options, group_id, groups, partitions, committed)
    if options.execute and plan:
        done = await admin.alter_group_offsets(
            group_id, {item: OffsetAndMetadata(offset) for item, offset in plan.items()}
        )
        for error in done.values():
            if error is not None:
                raise error
    return plan


async def _partitions_to_reset(
    admin: Admin, options: argparse.Namespace, committed: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    if options.all_topics:
        partitions = list(committed)
    else:
        partitions, topics = resets.parse_topics(options.topic or ())
        if topics:
            found = values_or_raise(await admin.describe_topics(topics))
            partitions += [(name, view.partition) for name, topic in found.items() for view in topic.partitions]
    await _check_existence(admin, partitions)
    return partitions


async def _check_existence(admin: Admin, partitions: Sequence[TopicPartition]) -> None:
    """Check that all partitions exist and have a leader. Raises ToolError."""
    leaders = await _leaders(admin, partitions)
    for problem, affected in (
        ("do not exist", [item for item in partitions if item not in leaders]),
        ("have no leader", [item for item in partitions if leaders.get(item, 0) < 0]),
    ):
        if affected:
            names = ",".join(f"{topic}-{partition}" for topic, partition in affected)
            raise ToolError(f'The partitions "{names}" {problem}')


async def _leaders(admin: Admin, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    requested = set(partitions)
    views = await admin.describe_topics({topic for topic, _ in requested}) if requested else {}
    return {
        (name, view.partition): view.leader_id
        for name, topic in views.items()
        if isinstance(topic, TopicView)
        for view in topic.partitions
        if (name, view.partition) in requested
    }


async def _plan_offsets(
    admin: Admin,
    options: argparse.Namespace,
    group_id: str,
    groups: Sequence[str],
    partitions: Sequence[TopicPartition],
    committed: Mapping[TopicPartition, int],
) -> resets.OffsetPlan:
    if options.to_offset is not None:
        return await _clamp_offsets(admin, dict.fromkeys(partitions, options.to_offset))
    if options.to_earliest:
        return await _list_offsets(admin, dict.fromkeys(partitions, EARLIEST))
    if options.to_latest:
        return await _list_offsets(admin, dict.fromkeys(partitions, LATEST))
    if options.shift_by is not None:
        return await _clamp_offsets(admin, resets.shift_offsets(partitions, committed, options.shift_by))
    if options.to_datetime is not None:
        return await _offsets_at_time(admin, partitions, resets.parse_datetime_ms(options.to_datetime))
    if options.by_duration is not None:
        now_ms = time.time_ns() // 1_000_000
        return await _offsets_at_time(admin, partitions, now_ms - resets.parse_duration_ms(options.by_duration))
    if options.from_file is not None:
        return await _plan_from_file(admin, options.from_file, group_id, groups)
    kept = {item: committed[item] for item in partitions if item in committed}
    return kept | await _list_offsets(admin, {item: LATEST for item in partitions if item not in committed})


async def _list_offsets(admin: Admin, timestamps: Mapping[TopicPartition, int]) -> resets.OffsetPlan:
    if not timestamps:
        return {}
    return {item: listed.offset for item, listed in (await admin.list_offsets(timestamps)).items()}


async def end_offsets(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the log end offsets of the partitions that have a leader."""
    leaders = await _leaders(admin, partitions)
    return await _list_offsets(admin, {item: LATEST for item in partitions if leaders.get(item, -1) >= 0})


async def _clamp_offsets(admin: Admin, requested: Mapping[TopicPartition, int]) -> resets.OffsetPlan:
    starts = await _list_offsets(admin, dict.fromkeys(requested, EARLIEST))
    ends = await _list_offsets(admin, dict.fromkeys(requested, LATEST))
    plan, warnings = resets.clamp_offsets(requested, starts, ends)
    for warning in warnings:
        print(f"WARN {warning}", file=sys.stderr)
    return plan


async def _offsets_at_time(admin: Admin, partitions: Sequence[TopicPartition], timestamp: int) -> resets.OffsetPlan:
    if timestamp < 0:
        raise ToolError(f"the requested time is before 1970: {timestamp} ms")
    found = await _list_offsets(admin, dict.fromkeys(partitions, timestamp))
    beyond_end = [item for item, offset in found.items() if offset < 0]
    for topic, partition in beyond_end:
        print(
            f"WARN Partition {partition} from topic {topic} is empty. Falling back to latest known offset.",
            file=sys.stderr,
        )
    return found | await _list_offsets(admin, dict.fromkeys(beyond_end, LATEST))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ToolError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


async def _plan_from_file(admin: Admin, path: str, group_id: str, groups: Sequence[str]) -> resets.OffsetPlan:
    plan = resets.from_csv(_read(path), list(groups)).get(group_id)
    if plan is None:
        print(f"\nError: No reset plan for group {group_id} found.")
        return {}
    await _check_existence(admin, list(plan))
    return await _clamp_offsets(admin, plan)
