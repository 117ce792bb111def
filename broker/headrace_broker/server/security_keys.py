"""Checks the broker keys for TLS, SASL, authorization and quotas, none of which headrace supports yet.

A node does not start with a key that protects an Apache Kafka node, because headrace would ignore the key and serve
without this protection. Keys that would not protect the node, for example TLS keys of a node that has only PLAINTEXT
listeners, cause one warning. An empty value counts as not set.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headrace_broker.metadata.protections import PROTECTING_KEYS, has_protecting_value, split_listener_prefix

_TLS, _SASL = "SSL", "SASL"
_TLS_KEYS = ("security.providers",)
_SASL_KEYS = ("connection.failed.authentication.delay.ms",)
_AUTHORIZER_KEYS = ("allow.everyone.if.no.acl.found", "early.start.listeners")
_TOKEN_PREFIX = "delegation.token."
_LISTENER_KEYS = {"max.connections": "this limit on connections"}
"""The keys that are supported for the node, but not for one listener. Each value names what the node would lack."""


def is_security_key(key: str) -> bool:
    """Return whether this module checks the key."""
    return any(
        base in PROTECTING_KEYS
        or base in _AUTHORIZER_KEYS
        or (listener is not None and base in _LISTENER_KEYS)
        or bool(_feature(base))
        for listener, base in split_listener_prefix(key)
    )


def check_security_keys(
    properties: Mapping[str, str], used_protocols: Mapping[str, str], errors: list[str]
) -> list[str]:
    """Append an error for each key that protects the node. Return the other security keys, which are ignored.

    `used_protocols` contains the security protocols of the node's listeners, by listener name.
    """
    ignored = []
    for key, value in properties.items():
        if not value or not is_security_key(key):
            continue
        lacking = _lacking(key, value, used_protocols)
        if lacking is None:
            ignored.append(key)
        else:
            errors.append(
                f"{key}: not supported yet, headrace would run without {lacking}; remove the key only if this node "
                "does not need the protection"
            )
    return ignored


def _lacking(key: str, value: str, used_protocols: Mapping[str, str]) -> str | None:
    """Return what the node would lack without the key, or None if the key would not protect the node."""
    splits = [split for split in split_listener_prefix(key) if split[0] is None or split[0] in used_protocols]
    if not splits:
        return None
    listener, base = splits[-1]  # in Kafka, the key has no effect on the other listeners, whose names are shorter
    protecting_keys = PROTECTING_KEYS if listener is None else PROTECTING_KEYS | _LISTENER_KEYS
    if base in protecting_keys and has_protecting_value(base, value):
        return protecting_keys[base]
    protocols: Collection[str] = used_protocols.values() if listener is None else [used_protocols[listener]]
    feature = _feature(base)
    if feature == _TLS and any(protocol.endswith("SSL") for protocol in protocols):
        return "TLS"
    if feature == _SASL and any(protocol.startswith("SASL") for protocol in protocols):
        return "SASL"
    return None


def _feature(base: str) -> str | None:
    """Return _TLS or _SASL if a key without listener prefix configures TLS or SASL.

    Some keys for SASL begin with the name of a mechanism, for example plain.sasl.jaas.config.
    """
    if base.startswith("ssl.") or base in _TLS_KEYS:
        return _TLS
    if ".sasl." in f".{base}" or base.endswith("connections.max.reauth.ms") or base in _SASL_KEYS:
        return _SASL
    return _SASL if base.startswith(_TOKEN_PREFIX) else None
