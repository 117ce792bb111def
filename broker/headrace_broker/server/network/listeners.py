"""The kinds of listeners, for handlers to say where they are served."""

from __future__ import annotations

BROKER = "broker"
CONTROLLER = "controller"
CLIENTS = frozenset((BROKER,))
QUORUM = frozenset((CONTROLLER,))
EVERYWHERE = frozenset((BROKER, CONTROLLER))
