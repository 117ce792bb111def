"""Checks the listeners of a node against its roles, with the rules of Kafka's KafkaConfig.

A properties file for Kafka always sets `process.roles`. If it is not set, the node is a broker and a controller that
may run without a controller listener, because no other node connects to its controller.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headrace_broker.server.network.endpoints import (
    DEFAULT_LISTENERS,
    SECURITY_PROTOCOLS,
    Listener,
    advertised_from,
    is_wildcard,
    parse_listeners,
    parse_protocol_map,
    split_list,
)

_DEFAULT_INTER_BROKER_PROTOCOL = "PLAINTEXT"
_PROTECTION = {
    "SSL": "encryption",
    "SASL_PLAINTEXT": "authentication",
    "SASL_SSL": "encryption and authentication",
}


@dataclass(frozen=True, slots=True)
class ListenerConfigs:
    """The listeners of a node. After an error, the fields may be incomplete."""

    listeners: tuple[Listener, ...]
    """The listeners for clients and brokers that this node binds."""
    advertised: tuple[Listener, ...]
    controllers: tuple[Listener, ...]
    """The listeners for controllers that this node binds."""
    controller_names: tuple[str, ...]
    inter_broker: str
    used_protocols: Mapping[str, str]
    """The security protocol of each listener that this node binds, advertises or connects to, by listener name."""


def parse_listener_configs(properties: Mapping[str, str], roles: Collection[str], errors: list[str]) -> ListenerConfigs:
    """Parse and check the listeners. Append errors to `errors`. As in Kafka, an empty value counts as not set."""
    return _Parser({key: value for key, value in properties.items() if value}, roles, errors).parse()


class _Parser:
    def __init__(self, properties: Mapping[str, str], roles: Collection[str], errors: list[str]) -> None:
        self._properties = properties
        self._errors = errors
        self._is_broker = "broker" in roles
        self._is_controller = "controller" in roles
        self._has_explicit_controllers = "controller.listener.names" in properties
        names = split_list(properties.get("controller.listener.names", "CONTROLLER"))
        self._controller_names = tuple(name.upper() for name in names)
        self._protocols = parse_protocol_map(
            properties.get("listener.security.protocol.map"), self._controller_names, errors
        )

    def parse(self) -> ListenerConfigs:
        if "process.roles" in self._properties and not self._has_explicit_controllers:
            self._errors.append(
                "controller.listener.names is required with process.roles; for example, set it to CONTROLLER"
                + (" and add CONTROLLER://host:port to listeners" if self._is_controller else "")
            )
        before = len(self._errors)
        bound = self._parse_listeners("listeners", DEFAULT_LISTENERS)
        given = self._parse_listeners("advertised.listeners", "")
        is_valid = len(self._errors) == before
        controllers = self._controllers_of(bound)
        serving = [item for item in bound if item not in controllers and self._is_broker]
        advertised = [item for item in given if item.name not in self._controller_names and self._is_broker]
        inter_broker = self._inter_broker()
        if is_valid:
            self._check_ports(bound)
            self._check_advertised(given)
            self._check_controllers(bound, controllers)
            self._check_brokers(serving, advertised if given else serving, inter_broker)
        return ListenerConfigs(
            listeners=tuple(serving),
            advertised=advertised_from(serving, advertised, self._errors),
            controllers=tuple(controllers),
            controller_names=self._controller_names,
            inter_broker=inter_broker,
            used_protocols=self._used_protocols([*bound, *given], inter_broker),
        )

    def _parse_listeners(self, key: str, default: str) -> list[Listener]:
        listeners = parse_listeners(key, self._properties.get(key, default), self._errors)
        for listener in listeners:
            self._check_mapped(listener.name, key)
        return list(listeners)

    def _check_mapped(self, name: str, key: str) -> None:
        if name not in self._protocols:
            self._errors.append(
                f"{key}: no security protocol for listener {name}: add {name}:PLAINTEXT to "
                "listener.security.protocol.map"
            )

    def _controllers_of(self, listeners: Sequence[Listener]) -> list[Listener]:
        return [item for item in listeners if item.name in self._controller_names]

    def _used_protocols(self, listeners: Sequence[Listener], inter_broker: str) -> dict[str, str]:
        """Return the used listeners with their protocols, and append an error for each protocol except PLAINTEXT."""
        names = [item.name for item in listeners]
        if self._has_explicit_controllers:
            # a node that is only a broker does not bind these listeners, but connects to the first of them
            names += self._controller_names if self._is_controller else self._controller_names[:1]
        if self._is_broker:
            names.append(inter_broker)
        used = {name: self._protocols[name] for name in names if name in self._protocols}
        for name, protocol in used.items():
            if protocol != "PLAINTEXT":
                self._errors.append(
                    f"listener.security.protocol.map: listener {name} uses {protocol}, which headrace does not support "
                    f"yet: it would run the listener without {_PROTECTION[protocol]}; use PLAINTEXT only in a private "
                    "network"
                )
        return used

    # -- rules -------------------------------------------------------------------------------------------------------

    def _check_ports(self, listeners: Sequence[Listener]) -> None:
        by_port: dict[int, list[Listener]] = defaultdict(list)
        for listener in listeners:
            by_port[listener.port].append(listener)
        for port, same in by_port.items():
            if port and len(same) > 1 and sorted(map(_ip_version, same), key=str) != [4, 6]:
                names = " and ".join(item.name for item in same)
                self._errors.append(
                    f"listeners: {names} have the same port {port}: only an IPv4 and an IPv6 address may share a port"
                )

    def _check_advertised(self, listeners: Sequence[Listener]) -> None:
        self._errors += [
            f"advertised.listeners: {item} is not an address that a client can connect to; specify a host"
            for item in listeners
            if item.host and is_wildcard(item.host)
        ]

    def _check_controllers(self, bound: Sequence[Listener], controllers: Sequence[Listener]) -> None:
        names = ", ".join(self._controller_names)
        key = f"controller.listener.names={names}"
        if not self._is_controller:
            if controllers:
                self._errors.append(
                    f"{key}: a node that is only a broker has no controller listener; remove "
                    f"{', '.join(map(str, controllers))} from listeners"
                )
            for name in self._controller_names:
                self._check_mapped(name, "controller.listener.names")
        elif self._has_explicit_controllers:
            missing = [name for name in self._controller_names if name not in {item.name for item in controllers}]
            self._errors += [
                f"{key}: listeners has no listener {name}; add {name}://host:port to listeners" for name in missing
            ]
        if not self._is_broker and (others := [item for item in bound if item not in controllers]):
            self._errors.append(
                f"listeners: a node that is only a controller has only listeners in controller.listener.names; remove "
                f"{', '.join(map(str, others))}"
            )

    def _check_brokers(self, serving: Sequence[Listener], advertised: Sequence[Listener], inter_broker: str) -> None:
        key = f"inter.broker.listener.name={inter_broker}"
        if not self._is_broker:
            if self._properties.get("inter.broker.listener.name", "").upper() in self._controller_names:
                self._errors.append(f"{key}: it is a controller listener; use the name of the brokers' listener")
            return
        if not serving:
            self._errors.append("listeners has no listener for clients: add PLAINTEXT://host:port")
            return
        if not advertised:
            self._errors.append("advertised.listeners has no listener for clients: add PLAINTEXT://host:port")
            return
        names = [item.name for item in advertised]
        if inter_broker not in names:
            is_controller = inter_broker in self._controller_names
            reason = "is a controller listener" if is_controller else "not one of the broker's listeners"
            self._errors.append(f"{key}: {reason}; use one of {', '.join(names)}")

    def _inter_broker(self) -> str:
        name = self._properties.get("inter.broker.listener.name")
        protocol = self._properties.get("security.inter.broker.protocol")
        if name is not None and protocol is not None:
            self._errors.append("set only one of inter.broker.listener.name and security.inter.broker.protocol")
        elif protocol is not None and protocol not in SECURITY_PROTOCOLS:
            self._errors.append(
                f"security.inter.broker.protocol={protocol}: expected one of {', '.join(SECURITY_PROTOCOLS)}"
            )
        return (name or protocol or _DEFAULT_INTER_BROKER_PROTOCOL).upper()


def _ip_version(listener: Listener) -> int | None:
    """Return 4 or 6 if the host is an IP address, otherwise None."""
    try:
        return ipaddress.ip_address(listener.host).version
    except ValueError:
        return None
