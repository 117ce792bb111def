"""Parses the listener configs: `listeners`, `advertised.listeners`, the protocol map and the quorum's voters."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
DEFAULT_LISTENERS = "PLAINTEXT://:9092"
DEFAULT_PROTOCOL_MAP = ",".join(f"{name}:{name}" for name in SECURITY_PROTOCOLS)


@dataclass(frozen=True, slots=True)
class Listener:
    """One named endpoint. An empty host stands for all interfaces, and port 0 stands for any free port."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def split_list(text: str) -> list[str]:
    """Split a comma-separated list, and drop empty elements."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_protocol_map(text: str | None, controller_names: Sequence[str], errors: list[str]) -> Mapping[str, str]:
    """Parse listener.security.protocol.map into {listener name: security protocol}. Append errors to `errors`.

    As in Kafka, if the key is not set, a listener whose name is a security protocol uses this protocol, and the
    listeners in `controller_names` use PLAINTEXT.
    """
    if text is None:
        return dict.fromkeys(controller_names, "PLAINTEXT") | {name: name for name in SECURITY_PROTOCOLS}
    mapping = {}
    for part in split_list(text):
        name, colon, protocol = (word.strip() for word in part.partition(":"))
        if not name or not colon or protocol.upper() not in SECURITY_PROTOCOLS:
            errors.append(f"listener.security.protocol.map: '{part}' is not NAME:PROTOCOL")
            continue
        mapping[name.upper()] = protocol.upper()
    return mapping


def parse_listeners(key: str, text: str, errors: list[str]) -> tuple[Listener, ...]:
    """Parse a comma-separated list of listeners. Append errors, which name the config `key`, to `errors`."""
    found: list[Listener] = []
    for part in split_list(text):
        listener = _parse_listener(key, part, errors)
        if listener is None:
            continue
        if any(listener.name == other.name for other in found):
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


def parse_addresses(key: str, text: str, errors: list[str]) -> tuple[tuple[str, int], ...]:
    """Parse a comma-separated list of host:port. Append errors, which name the config `key`, to `errors`."""
    found = []
    for part in split_list(text):
        host, _, port = part.rpartition(":")
        if host and port.isdigit() and 0 < int(port) < 65536:
            found.append((host.strip("[]"), int(port)))
        else:
            errors.append(f"{key}: '{part}' is not host:port")
    return tuple(found)


def advertised_from(
    listeners: Sequence[Listener], advertised: Sequence[Listener], errors: list[str]
) -> tuple[Listener, ...]:
    """Return the advertised listener for each entry of `listeners`. Append errors to `errors`.

    A listener without an entry in `advertised` is advertised with its own host. If it is bound to all interfaces, it is
    advertised with this machine's host name, or `localhost` if that name cannot be resolved. The same applies to an
    entry of `advertised` without a host. A port of 0 is replaced later, when the socket is bound.
    """
    given = {item.name: item for item in advertised}
    errors += [
        f"advertised.listeners: {name} is not a listener in listeners"
        for name in given.keys() - {item.name for item in listeners}
    ]
    entries = [given.get(item.name, item) for item in listeners]
    return tuple(replace(item, host=_advertised_host(item.host)) for item in entries)


def is_wildcard(host: str) -> bool:
    """Return whether a listener with this host binds all interfaces: an empty host, 0.0.0.0 or ::."""
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _advertised_host(host: str) -> str:
    if not is_wildcard(host):
        return host
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        return "localhost"
    return name
