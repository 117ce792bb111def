"""kafka-metadata-quorum: show the metadata quorum's leader and its followers' lag (Kafka's MetadataQuorumCommand)."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace_broker.protocol.uuid_text import encode_uuid
from headrace_broker.tools.command_line import Parser, admin_client, run, run_and_exit
from headrace_broker.tools.tool_error import ToolError

if TYPE_CHECKING:
    from headrace_broker.client.admin_replicas import QuorumDescription
    from headrace_broker.protocol.messages.describe_quorum import ReplicaState

_HEADERS = ("NodeId", "DirectoryId", "LogEndOffset", "Lag", "LastFetchTimestamp", "LastCaughtUpTimestamp", "Status")
_NO_LEADER = "are a majority of controller.quorum.voters running?"
_COMMANDS = ("describe", "add-controller", "remove-controller")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool and return its exit code."""
    parser = Parser("kafka-metadata-quorum", "Describe the metadata quorum.")
    parser.add_bootstrap_server()
    parser.add_bootstrap_controller()
    parser.add_command_config()
    parser.add_argument("command", metavar="describe", help="The command to run.")
    parser.add_argument("--status", action="store_true", help="Show a short summary.")
    parser.add_argument("--replication", action="store_true", help="Show the replication state of each replica.")
    parser.add_argument("--human-readable", action="store_true", help="With --replication: show times as ages.")
    options = parser.parse(argv)
    if options.command not in _COMMANDS:
        parser.error(f"invalid choice: '{options.command}' (choose from {', '.join(_COMMANDS)})")
    if options.command != "describe":
        parser.error(f"{options.command}: not supported yet; to change the voters, set controller.quorum.voters")
    if options.status and options.replication:
        parser.error("Only one of --status or --replication should be specified with describe sub-command")
    if not options.status and not options.replication:
        parser.error("One of --status or --replication must be specified with describe sub-command")
    if options.status and options.human_readable:
        parser.error("The option --human-readable is only supported along with --replication")
    parser.required_server(options)
    return run(_describe(options))


def entry() -> None:
    """Entry point of the console script."""
    run_and_exit(main)


async def _describe(options: argparse.Namespace) -> int:
    async with admin_client(options) as admin:
        cluster = await admin.describe_cluster()
        if cluster.controller_id < 0:  # only controllers report -1; without a leader, a broker fails DescribeQuorum
            raise ToolError(f"the metadata quorum has no leader: {_NO_LEADER}")
        quorum = await admin.describe_quorum()
    if options.status:
        lines = status(quorum, cluster.cluster_id or "")
    else:
        lines = replication(quorum, int(time.time() * 1000) if options.human_readable else None)
    for line in lines:
        print(line)
    return 0


def _leader(quorum: QuorumDescription) -> ReplicaState:
    state = quorum.state
    leader = next((voter for voter in state.current_voters if voter.replica_id == state.leader_id), None)
    if leader is None:
        raise ToolError(f"the metadata quorum has no leader: {_NO_LEADER}")
    return leader


# -- status ----------------------------------------------------------------------------------------------------------


def status(quorum: QuorumDescription, cluster_id: str) -> list[str]:
    """Return the lines of --status. Raises ToolError."""
    state, leader = quorum.state, _leader(quorum)
    last = min(state.current_voters, key=lambda voter: voter.log_end_offset)
    return [
        f"ClusterId:              {cluster_id}",
        f"LeaderId:               {state.leader_id}",
        f"LeaderEpoch:            {state.leader_epoch}",
        f"HighWatermark:          {state.high_watermark}",
        f"MaxFollowerLag:         {leader.log_end_offset - last.log_end_offset}",
        f"MaxFollowerLagTimeMs:   {_lag_ms(leader, last)}",
        f"CurrentVoters:          {_nodes(quorum, state.current_voters)}",
        f"CurrentObservers:       {_nodes(quorum, state.observers)}",
    ]


def _lag_ms(leader: ReplicaState, last: ReplicaState) -> int:
    if last is leader:
        return 0
    if leader.last_caught_up_timestamp < 0 or last.last_caught_up_timestamp < 0:
        return -1
    return leader.last_caught_up_timestamp - last.last_caught_up_timestamp


def _nodes(quorum: QuorumDescription, replicas: Iterable[ReplicaState]) -> str:
    return f"[{', '.join(_node(quorum, replica) for replica in replicas)}]"


def _node(quorum: QuorumDescription, replica: ReplicaState) -> str:
    text = f'{{"id": {replica.replica_id}'
    if any(replica.replica_directory_id):
        text += f', "directoryId": "{encode_uuid(replica.replica_directory_id)}"'
    endpoints = [f"{name}://{host}:{port}" for name, host, port in quorum.endpoints.get(replica.replica_id, ())]
    if endpoints:
        text += f', "endpoints": [{", ".join(json.dumps(endpoint) for endpoint in endpoints)}]'
    return text + "}"


# -- replication -----------------------------------------------------------------------------------------------------


def replication(quorum: QuorumDescription, now_ms: int | None) -> list[str]:
    """Return the lines of --replication; if `now_ms` is given, show ages instead of timestamps. Raises ToolError."""
    leader = _leader(quorum)
    state = quorum.state
    replicas = [(leader, "Leader")]
    replicas += [(voter, "Follower") for voter in state.current_voters if voter is not leader]
    replicas += [(observer, "Observer") for observer in state.observers]
    rows = [_HEADERS, *(_row(replica, leader, role, now_ms) for replica, role in replicas)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADERS))]
    return ["".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)) for row in rows]


def _row(replica: ReplicaState, leader: ReplicaState, role: str, now_ms: int | None) -> tuple[str, ...]:
    return (
        str(replica.replica_id),
        encode_uuid(replica.replica_directory_id),
        str(replica.log_end_offset),
        str(leader.log_end_offset - replica.log_end_offset),
        _time(replica.last_fetch_timestamp, now_ms),
        _time(replica.last_caught_up_timestamp, now_ms),
        role,
    )


def _time(timestamp_ms: int, now_ms: int | None) -> str:
    return str(timestamp_ms) if timestamp_ms < 0 or now_ms is None else f"{max(0, now_ms - timestamp_ms)} ms ago"


if __name__ == "__main__":
    entry()
