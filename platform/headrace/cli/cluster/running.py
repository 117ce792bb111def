"""Implements `headrace cluster start`, from the options to the exit status."""

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
    ClusterLayout,
    open_layout,
    read_layout,
    write_cluster_file,
    write_node_files,
    write_unfinished_file,
)
from headrace.cli.cluster.ports import check_ports
from headrace.cli.cluster.supervisor import Supervisor

_PER_NODE_KEYS = frozenset(
    ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dirs", "log.dir", "metadata.log.dir")
)


def run_cluster(directory: Path, nodes: int | None, base_port: int | None, overrides: Sequence[str]) -> int:
    """Run a cluster in the foreground, and return the exit status."""
    control = ControlServer(directory)
    try:
        values = _parse_overrides(overrides)
        layout = _open_and_lock(control, directory, nodes, base_port)
        _check_overrides(layout, values)
        is_new = read_layout(directory) is None
        check_ports(layout, is_new=is_new)  # no file is written yet, so a new cluster can still use other ports
        if is_new:
            write_unfinished_file(layout)
        write_node_files(layout, values)
        if is_new:
            for node_id in layout.node_ids:
                format_node(layout, node_id)
        write_cluster_file(layout)
        asyncio.run(_run(layout, control))
    except ClusterError as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"cannot use {error.filename or directory}: {error.strerror or error}")
    except KeyboardInterrupt:  # Ctrl-C before the supervisor has installed its signal handlers
        return 130
    return 0


def _open_and_lock(control: ControlServer, directory: Path, nodes: int | None, base_port: int | None) -> ClusterLayout:
    from headrace_broker.protocol.uuid_text import encode_uuid
    from headrace_broker.server.data_dirs import random_uuid

    # Check the directory first, so that no lock file is created in an unusable directory.
    open_layout(directory, nodes, base_port, "")
    control.lock_directory()
    return open_layout(directory, nodes, base_port, encode_uuid(random_uuid()))


async def _run(layout: ClusterLayout, control: ControlServer) -> None:
    await Supervisor(layout, _print_line).run(control)


def _parse_overrides(overrides: Sequence[str]) -> dict[str, str]:
    values = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ClusterError(f"--property {override}: expected KEY=VALUE")
        values[key.strip()] = value.strip()
    return values


def _check_overrides(layout: ClusterLayout, values: Mapping[str, str]) -> None:
    """Validate the overrides before they are written to the nodes' files. Raises ClusterError."""
    if not values:
        return
    from headrace_broker.server.config import BrokerConfig, ConfigError

    shared = sorted(values.keys() & _PER_NODE_KEYS) if layout.nodes > 1 else []
    if shared:
        files = layout.directory / "node-N" / "server.properties"
        raise ClusterError(
            f"--property {shared[0]}: the value must differ between nodes; set it in each node's file, {files}"
        )
    try:
        for node_id in layout.node_ids:
            config = BrokerConfig.from_properties({**layout.node_properties(node_id), **values})
    except ConfigError as error:
        raise ClusterError(f"--property: {'; '.join(error.errors)}") from None
    for warning in config.warnings:
        print(f"headrace cluster: --property: {warning}", file=sys.stderr)


def _print_line(line: str) -> None:
    """Print a line to standard output. If that fails, the nodes keep running."""
    try:
        print(line, flush=True)
    except OSError as error:
        if error.errno != errno.ENOSPC:  # on a full disk, the line stays buffered until the next write
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(reason: str) -> int:
    print(f"headrace cluster: {reason}", file=sys.stderr)
    return 1
