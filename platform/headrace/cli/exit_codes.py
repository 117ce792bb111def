"""The exit codes of the Connect commands: Connect's own, and the shell's for an interrupt."""

from __future__ import annotations

USAGE = 1
PREPARING = 2
STARTING = 3
INTERRUPTED = 130
