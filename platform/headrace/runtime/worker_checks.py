"""Checks of a worker's configuration that need DNS or the Kafka client's definitions, for start-up and validation.

`check_worker` returns all errors and warnings of a worker's properties together. As in Kafka, a host of
bootstrap.servers that cannot be resolved is an error only if no other host can be resolved.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.api.errors import ConfigError, ConfigErrors
from headrace.runtime.worker_config import CLIENT_PREFIXES, WorkerConfig, WorkerConfigErrors, is_distributed

if TYPE_CHECKING:
    from headrace.plugins.variables import UnresolvedVariable


@dataclass(frozen=True, slots=True)
class WorkerCheck:
    """The result of a check. `config` is None if there are errors."""

    config: WorkerConfig | None
    errors: tuple[str, ...]
    warnings: tuple[str, ...]


def check_worker(
    properties: Mapping[str, str],
    parse: Callable[[Mapping[str, str]], WorkerConfig],
    originals: Mapping[str, str] | None = None,
    unresolved: Iterable[UnresolvedVariable] = (),
) -> WorkerCheck:
    """Parse a worker's properties, in which variables are resolved, and check its hosts and clients.

    `originals` contains the properties with variables. Errors and warnings contain the variables, not their values.
    A variable in `unresolved` is reported as an error if there are other errors, and otherwise as a warning.
    """
    config: WorkerConfig | None = None
    errors: list[ConfigError] = []
    warnings: list[str] = []
    try:
        config = parse(properties)
        warnings += config.warnings
    except WorkerConfigErrors as found:
        errors += found.errors
        warnings += found.warnings
    except ConfigErrors as found:
        errors += found.errors
    servers = properties.get("bootstrap.servers", "").strip()
    if servers and not any(error.key == "bootstrap.servers" for error in errors):
        host_errors, host_warnings = host_problems(servers)
        errors += host_errors
        warnings += host_warnings
    errors += client_errors(properties)
    messages = [str(error) for error in errors]
    (messages if messages else warnings).extend(map(str, unresolved))
    if originals is not None and originals != properties:
        from headrace.plugins.variables import variable_replacer

        show_variables = variable_replacer(originals, properties).replace
        messages, warnings = list(map(show_variables, messages)), list(map(show_variables, warnings))
        config = config and replace(config, originals=dict(originals))
    return WorkerCheck(None if messages else config, tuple(dict.fromkeys(messages)), tuple(warnings))


def host_problems(servers: str) -> tuple[list[ConfigError], list[str]]:
    """Return the errors and warnings about unresolvable hosts in bootstrap.servers."""
    from headrace_broker.client.config_values import parse_servers

    unknown, is_any_known = [], False
    for host, port in parse_servers(servers, []):
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            is_any_known = True
        except OSError as error:
            unknown.append(f"the host {host} cannot be resolved ({error.strerror or error})")
    if unknown and not is_any_known:
        text = "; ".join(unknown) + ": no broker can be reached; check the host names and the DNS"
        return [ConfigError("bootstrap.servers", servers, text)], []
    return [], [f"bootstrap.servers: {text}; the other brokers are used" for text in unknown]


def client_errors(properties: Mapping[str, str]) -> list[ConfigError]:
    """Return the errors in client settings: in the keys with a client's prefix and in those of the worker's clients."""
    has_prefix = any(key.startswith(CLIENT_PREFIXES) for key in properties)
    if not has_prefix and not is_distributed(properties):
        return []  # saves importing the client
    from headrace.runtime import client_configs
    from headrace_broker.client.config import ClientConfig

    worker = {**properties, "bootstrap.servers": "localhost:9092"}  # the servers are checked elsewhere
    worker.pop("headrace.static.members", None)
    connector = {"name": "check"}
    producer = client_configs.producer_properties(worker, connector, "")
    consumer = client_configs.consumer_properties(worker, connector, "")
    own = client_configs.worker_properties(worker)
    admin = {key[len("admin.") :]: value for key, value in worker.items() if key.startswith("admin.")}
    admin = {key: value for key, value in admin.items() if not key.startswith("listeners")} | {
        "bootstrap.servers": worker["bootstrap.servers"]
    }
    return [
        *_parse_errors("producer.", lambda: client_configs.parse_producer(producer)),
        *_parse_errors("consumer.", lambda: ClientConfig.from_properties(consumer, kind="consumer")),
        *_parse_errors("admin.", lambda: ClientConfig.from_properties(admin, kind="admin")),
        *_parse_errors("", lambda: ClientConfig.from_properties(own, kind="admin")),
    ]


def _parse_errors(prefix: str, parse: Callable[[], object]) -> Iterable[ConfigError]:
    from headrace_broker.client.errors import ClientConfigError

    try:
        parse()
    except ClientConfigError as error:
        return [ConfigError("", None, f"{prefix}{message}") for message in error.errors]
    return []
