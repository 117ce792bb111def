"""Policies that restrict which client settings a connector may override (KIP-458, KIP-1188).

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace.api.errors import ConfigError, ConfigErrors

_PREFIXES = ("producer.override.", "consumer.override.", "admin.override.")
_PRINCIPAL = frozenset({"sasl.jaas.config", "sasl.mechanism", "security.protocol"})
POLICIES = ("All", "None", "Principal", "Allowlist")


def known_policy(name: str) -> str | None:
    """Return the short name of a policy, or None if it does not exist. `name` is its short name or Java class."""
    short = name.strip().rpartition(".")[2].removesuffix("ConnectorClientConfigOverridePolicy")
    return next((policy for policy in POLICIES if policy.lower() == short.lower()), None)


def check_overrides(config: Mapping[str, str], worker: Mapping[str, str]) -> None:
    """Check the client overrides of an existing connector again, because the worker's policy may have changed.

    Raises ConfigErrors.
    """
    policy = known_policy(worker.get("connector.client.config.override.policy") or "All") or "All"
    allowlist = worker.get("connector.client.config.override.allowlist", "").split(",")
    refused = refusals(policy, [key.strip() for key in allowlist], config)
    if refused:
        raise ConfigErrors([ConfigError("", None, f"{key}: {message}") for key, message in refused.items()])


def refusals(policy: str, allowlist: Collection[str], config: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of the overrides that the policy does not allow, each with an error message."""
    if policy == "All":
        return {}
    allowed = {"None": frozenset(), "Principal": _PRINCIPAL, "Allowlist": frozenset(allowlist)}[policy]
    overrides = {key: key.split(".override.", 1)[1] for key in config if key.startswith(_PREFIXES)}
    return {
        key: f"The '{policy}' policy does not allow '{setting}' to be overridden in the connector configuration."
        for key, setting in overrides.items()
        if setting not in allowed
    }
