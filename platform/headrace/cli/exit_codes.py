"""The exit codes of the Connect commands: those of Kafka Connect, and 130 for an interrupt as in shells."""

from __future__ import annotations

USAGE_ERROR = 1
WORKER_FAILED = 2
CONNECTOR_FAILED = 3
INTERRUPTED = 130
