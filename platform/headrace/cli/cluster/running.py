"""What `headrace cluster start` does in its process, from the options to the exit status."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.cli.cluster.control import ControlServer
from headrace.cli.cluster.formatting import format_node
from headrace.cli.cluster.layout import (
    ClusterError,
    Layout,
    open_layout,
    read_layout,
    write_cluster_file,
    write_node_files,
    write_unfinished_file,
)
from headrace.cli.cluster.ports import check_ports
from headrace.cli.cluster.supervisor import Supervisor

_OWN = frozenset(
    ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir", "metadata.log.dir")
)


def run_cluster(directory: Path, nodes: int | None, base_port: int | None, overrides: Sequence[str]) -> int:
    """Run a cluster in the foreground; returns the exit status."""
    control = ControlServer(directory)
    try:
        values = _values(overrides)
        layout = _take(control, directory, nodes, base_port)
        _check(layout, values)
        is_new = read_layout(directory) is None
        check_ports(layout, is_new=is_new)  # before anything is written: a new cluster may still be given others
        if is_new:
            write_unfinished_file(layout)
        write_node_files(layout, values)
        if is_new:
            for node_id in layout.node_ids:
                format_node(layout, node_id)
        write_cluster_file(layout)
        asyncio.run(_run(layout, control))
    except ClusterError as error:
        return _refuse(str(error))
    except OSError as error:
        return _refuse(f"{error.filename or directory} cannot be used: {error.strerror or error}")
    except KeyboardInterrupt:  # before the signals were the supervisor's to handle
        return 130
    return 0


def _take(control: ControlServer, directory: Path, nodes: int | None, base_port: int | None) -> Layout:
    from headrace_broker.protocol.uuid_text import encode_uuid
    from headrace_broker.server.data_dirs import random_uuid

    open_layout(directory, nodes, base_port, "")  # nothing is left behind in a directory that cannot be used
    control.take()
    return open_layout(directory, nodes, base_port, encode_uuid(random_uuid()))


async def _run(layout: Layout, control: ControlServer) -> None:
    await Supervisor(layout, _say).run(control)


def _values(overrides: Sequence[str]) -> dict[str, str]:
    values = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ClusterError(f"--property {override}: expected KEY=VALUE")
        values[key.strip()] = value.strip()
    return values


def _check(layout: Layout, values: Mapping[str, str]) -> None:
    """Find faults in the overrides before they stand in the nodes' files.  Raises ClusterError."""
    if not values:
        return
    from headrace_broker.server.config import BrokerConfig, ConfigError

    shared = sorted(values.keys() & _OWN) if layout.nodes > 1 else []
    if shared:
        files = layout.directory / "node-N" / "server.properties"
        raise ClusterError(f"--property {shared[0]}: no two nodes can share it: change it in their own files, {files}")
    try:
        for node_id in layout.node_ids:
            config = BrokerConfig.from_properties({**layout.node_properties(node_id), **values})
    except ConfigError as error:
        raise ClusterError(f"--property: {'; '.join(error.errors)}") from None
    for warning in config.warnings:
        print(f"headrace cluster: --property: {warning}", file=sys.stderr)


def _say(line: str) -> None:
    """Tell whoever reads standard output; the nodes run on where nobody can be told."""
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # a disk takes it with the next line, as soon as it has room
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse(reason: str) -> int:
    print(f"headrace cluster: {reason}", file=sys.stderr)
    return 1
