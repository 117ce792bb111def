"""The states of a transaction by Kafka's names; a state's index is its number in `__transaction_state` records."""

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
