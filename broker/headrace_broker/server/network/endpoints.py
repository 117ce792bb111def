"""Parses the listener configs: `listeners`, `advertised.listeners`, the protocol map and the quorum's voters."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

_SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_LISTENERS = "PLAINTEXT://:9092"
DEFAULT_PROTOCOL_MAP = ",".join(f"{name}:{name}" for name in _SECURITY_PROTOCOLS)


@dataclass(frozen=True, slots=True)
class Listener:
    """One named endpoint. An empty host stands for all interfaces, and port 0 stands for any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str | None, errors: list[str]) -> Mapping[str, str]:
    """Parse listener.security.protocol.map into {listener name: security protocol}. Append errors to `errors`.

    As in Kafka, a listener whose name is a security protocol uses this protocol by default.
    """
    mapping = {name: name for name in _SECURITY_PROTOCOLS} | {"CONTROLLER": "PLAINTEXT"}
    for part in (text or "").split(","):
        name, colon, protocol = part.strip().partition(":")
        if not name:
            continue
        if not colon or protocol.upper() not in _SECURITY_PROTOCOLS:
            errors.append(f"listener.security.protocol.map: '{part}' is not NAME:PROTOCOL")
            continue
        mapping[name.upper()] = protocol.upper()
    return mapping


def parse_listeners(
    key: str, text: str, protocols: Mapping[str, str], controllers: Sequence[str], errors: list[str]
) -> tuple[Listener, ...]:
    """Parse a comma-separated list of listeners. Append errors, which name the config `key`, to `errors`.

    `protocols` maps a listener's name to its security protocol, which must be PLAINTEXT unless the name is in
    `controllers`.
    """
    found: list[Listener] = []
    for part in (item.strip() for item in text.split(",")):
        if not part:
            continue
        listener = _parse_listener(key, part, errors)
        if listener is None:
            continue
        protocol = protocols.get(listener.name)
        if protocol is None:
            errors.append(
                f"{key}: no security protocol for listener {listener.name}: add listener.security.protocol.map"
            )
        elif protocol != "PLAINTEXT" and listener.name not in controllers:
            errors.append(f"{key}: {part} uses {protocol}, which this broker does not support yet; use PLAINTEXT")
        elif any(listener.name == other.name for other in found):
            errors.append(f"{key}: listener {listener.name} appears twice")
        else:
            found.append(listener)
    return tuple(found)


def _parse_listener(key: str, text: str, errors: list[str]) -> Listener | None:
    name, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    if not separator or not colon or not port.isdigit() or int(port) > 65535:
        errors.append(f"{key}: '{text}' is not NAME://host:port")
        return None
    return Listener(name.strip().upper(), host.strip("[]"), int(port))


def parse_voters(text: str, errors: list[str]) -> dict[int, tuple[str, int]]:
    """Parse controller.quorum.voters into {node id: (host, port)}. Append errors to `errors`."""
    voters: dict[int, tuple[str, int]] = {}
    for part in (item.strip() for item in text.split(",")):
        node, at, address = part.partition("@")
        host, _, port = address.rpartition(":")
        if not at or not node.isdigit() or not port.isdigit() or not 0 < int(port) < 65536:
            errors.append(f"controller.quorum.voters: '{part}' is not id@host:port")
        elif int(node) in voters:
            errors.append(f"controller.quorum.voters: node {node} appears twice")
        else:
            voters[int(node)] = (host.strip("[]"), int(port))
    return voters


def advertised_from(
    listeners: Sequence[Listener], advertised: Sequence[Listener], errors: list[str]
) -> tuple[Listener, ...]:
    """Return the advertised listener for each entry of `listeners`. Append errors to `errors`.

    A listener without an entry in `advertised` is advertised with its own host. If it is bound to all interfaces, it is
    advertised with this machine's host name, or `localhost` if that name cannot be resolved. A port of 0 is replaced
    later, when the socket is bound.
    """
    given = {item.name: item for item in advertised}
    errors += [
        f"advertised.listeners: {name} is not a listener in listeners"
        for name in given.keys() - {item.name for item in listeners}
    ]
    errors += [
        f"advertised.listeners: {item} is not an address that a client can connect to; specify a host"
        for item in given.values()
        if item.host in ("0.0.0.0", "::")
    ]
    return tuple(given.get(item.name) or replace(item, host=_advertised_host(item.host)) for item in listeners)


def _advertised_host(host: str) -> str:
    if host not in ("", "0.0.0.0", "::"):
        return host
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
