"""The exit codes of the Connect commands: Kafka Connect's exit codes, and 130 after an interrupt, as in shells."""

from __future__ import annotations

USAGE_ERROR = 1
WORKER_FAILED = 2
CONNECTOR_FAILED = 3
INTERRUPTED = 130
