"""Tests of the worker's policies for client overrides in connector configurations."""

from __future__ import annotations

import pytest

from headrace.runtime.override_policy import known_policy, refusals

CONFIG = {"name": "c", "producer.override.acks": "1", "consumer.override.sasl.mechanism": "PLAIN"}


@pytest.mark.parametrize(
    ("policy", "allowlist", "refused"),
    [
        ("All", [], []),
        ("None", [], ["producer.override.acks", "consumer.override.sasl.mechanism"]),
        ("Principal", [], ["producer.override.acks"]),
        ("Allowlist", ["acks"], ["consumer.override.sasl.mechanism"]),
    ],
)
def test_client_override_policy_rejects_override_keys_that_it_does_not_allow(
    policy: str, allowlist: list[str], refused: list[str]
) -> None:
    found = refusals(policy, allowlist, CONFIG)
    assert list(found) == refused
    assert all(f"does not allow '{key.split('.override.')[1]}' to be" in line for key, line in found.items())
    assert all(f"'{policy}'" in line for line in found.values())


def test_client_override_policy_is_found_by_short_name_and_java_class() -> None:
    assert known_policy("none") == "None"
    java = "org.apache.kafka.connect.connector.policy.PrincipalConnectorClientConfigOverridePolicy"
    assert known_policy(java) == "Principal"
    assert known_policy("com.example.Mine") is None
