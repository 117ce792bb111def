"""The listener types, as in Kafka's ApiMessageType; a handler declares on which of them its API is served."""

from __future__ import annotations

BROKER = "broker"
CONTROLLER = "controller"
BROKER_ONLY = frozenset((BROKER,))
CONTROLLER_ONLY = frozenset((CONTROLLER,))
BROKER_AND_CONTROLLER = frozenset((BROKER, CONTROLLER))
