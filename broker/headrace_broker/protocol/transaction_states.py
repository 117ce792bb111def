"""The states of a transaction, with Kafka's names. A state's index is its number in `__transaction_state` records."""

from __future__ import annotations

TRANSACTION_STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)
