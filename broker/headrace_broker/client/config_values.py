"""Parses the values of client settings, and lists the keys of Java's clients that this client ignores."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable
from typing import Any

from headrace_broker.records.compression import Compression

_IGNORED_KEYS = """
    auto.include.jmx.reporter bootstrap.controllers bootstrap.resolve.timeout.ms buffer.memory.allocation.strategy
    client.dns.lookup  config.providers
    connections.max.idle.ms enable.metrics.push group.remote.assignor interceptor.classes
    internal.auto.downgrade.txn.commit internal.throw.on.fetch.stable.offset.unsupported key.deserializer
    key.serializer metadata.cluster.check.enable metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    partitioner.class partitioner.rack.aware share.acknowledgement.mode share.acquire.mode
    socket.connection.setup.timeout.max.ms transaction.timeout.ms transaction.two.phase.commit.enable
    value.deserializer value.serializer
"""
IGNORED_KEYS = frozenset(_IGNORED_KEYS.split())
SECURITY_PREFIXES = ("ssl.", "sasl.", "security.providers")

ASSIGNOR_NAMES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}
_SERVER = re.compile(r"(?:\w+://)?(?:\[([^\]]+)\]|([^:/\s]+)):(\d+)")


def parse_value(item: dataclasses.Field[Any], text: str) -> Any:
    """Convert the text to a value of the field's type. Raises ValueError with the expected values."""
    text = text.strip()
    choices: tuple[str, ...] = item.metadata["choices"]
    if choices and text.lower() not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}")
    special = _SPECIAL.get(item.metadata["key"])
    if special is not None:
        return special(text)
    kind = str(item.type)
    if kind == "bool":
        return _parse_bool(text)
    if kind == "int":
        return _parse_int(text, item.metadata["minimum"], item.metadata["maximum"])
    return text.lower() if choices else text


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _parse_int(text: str, minimum: int, maximum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        raise ValueError("expected a whole number") from None
    if not minimum <= value <= maximum:
        raise ValueError(f"expected {minimum}..{maximum}")
    return value


def _parse_acks(text: str) -> int:
    return -1 if text.lower() == "all" else int(text)


def _parse_compression(text: str) -> Compression:
    return Compression[text.upper()]


def _parse_assignors(text: str) -> tuple[str, ...]:
    names = []
    for part in filter(None, (item.strip() for item in text.split(","))):
        simple = part.rpartition(".")[2]
        name = ASSIGNOR_NAMES.get(simple, simple)
        if name not in ASSIGNOR_NAMES.values():
            raise ValueError(f"unknown assignor {part}; the assignors are {', '.join(ASSIGNOR_NAMES)}")
        names.append(name)
    if not names:
        raise ValueError("expected at least one assignor")
    return tuple(dict.fromkeys(names))


def _parse_offset_reset(text: str) -> str:
    lowered = text.lower()
    if lowered in ("earliest", "latest", "none"):
        return lowered
    if lowered.startswith("by_duration:") and parse_duration_ms(text.partition(":")[2]) is not None:
        return text
    raise ValueError("expected earliest, latest, none or by_duration:<ISO-8601 duration>")


_DURATION = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)


def parse_duration_ms(text: str) -> int | None:
    """Return an ISO-8601 duration of days and time (`P3DT4H`) in milliseconds, or None if it is invalid."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)


_SPECIAL = {
    "acks": _parse_acks,
    "compression.type": _parse_compression,
    "partition.assignment.strategy": _parse_assignors,
    "auto.offset.reset": _parse_offset_reset,
}


def parse_servers(text: str | None, errors: list[str]) -> tuple[tuple[str, int], ...]:
    """Return bootstrap.servers as (host, port) pairs; append errors to `errors`."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if not parts:
        errors.append("bootstrap.servers: missing; expected host:port[,host:port...]")
    servers = []
    for part in parts:
        match = _SERVER.fullmatch(part)
        if match is None or not 0 < int(match[3]) < 65536:
            errors.append(f"bootstrap.servers: '{part}' is not host:port")
        else:
            servers.append((match[1] or match[2], int(match[3])))
    return tuple(dict.fromkeys(servers))


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """Return the known key most similar to `key`, or None if no key is similar."""
    matches = difflib.get_close_matches(key, list(known), n=1, cutoff=0.75)
    return matches[0] if matches else None
