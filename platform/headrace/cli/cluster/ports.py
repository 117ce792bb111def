"""Checks that the nodes of a local cluster can bind their ports, before files are written or processes are started."""

from __future__ import annotations

import errno
import socket

from headrace.cli.cluster.layout import HOST, ClusterError, ClusterLayout


def check_ports(layout: ClusterLayout, *, is_new: bool) -> None:
    """Check that all ports of the cluster can be bound. Raises ClusterError for the first port that cannot be bound.

    The error suggests another --base-port only if `is_new`, because an existing cluster keeps its ports.
    """
    for node_id in layout.node_ids:
        uses = (("clients", layout.port(node_id)), ("controllers", layout.controller_port(node_id)))
        for use, port in uses:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    name = f"port {port} (node {node_id}, for {use})"
                    raise ClusterError(_port_error(error, name, is_new=is_new)) from None


def _port_error(error: OSError, port: str, *, is_new: bool) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{port} is in use: stop the process that uses it, or use another {'--base-port' if is_new else '--dir'}"
    if error.errno == errno.EACCES:
        return f"{port}: this user is not permitted to bind it: use a --base-port above 1023"
    return f"{port} cannot be bound: {error.strerror}"
