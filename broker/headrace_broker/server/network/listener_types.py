"""The listener types, as in Kafka's ApiMessageType. A handler module declares the listener types that serve its API."""

from __future__ import annotations

BROKER = "broker"
CONTROLLER = "controller"
BROKER_ONLY = frozenset((BROKER,))
CONTROLLER_ONLY = frozenset((CONTROLLER,))
BROKER_AND_CONTROLLER = frozenset((BROKER, CONTROLLER))
