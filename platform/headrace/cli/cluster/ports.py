"""Whether a local cluster can have its ports; found out before anything is written or started."""

from __future__ import annotations

import errno
import socket

from headrace.cli.cluster.layout import HOST, ClusterError, Layout


def check_ports(layout: Layout, *, is_new: bool) -> None:
    """Raises ClusterError when somebody else has one of the cluster's ports; a cluster keeps those it was made with."""
    for node_id in layout.node_ids:
        uses = (("clients", layout.port(node_id)), ("controllers", layout.controller_port(node_id)))
        for use, port in uses:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind((HOST, port))
                except OSError as error:
                    name = f"port {port} (node {node_id}, for {use})"
                    raise ClusterError(_port_fault(error, name, is_new=is_new)) from None


def _port_fault(error: OSError, port: str, *, is_new: bool) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{port} is in use: stop whoever has it, or name another {'--base-port' if is_new else '--dir'}"
    if error.errno == errno.EACCES:
        return f"{port} may not be bound by this user: name a --base-port above 1023"
    return f"{port} cannot be bound: {error.strerror}"
