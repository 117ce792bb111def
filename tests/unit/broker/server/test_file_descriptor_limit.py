"""Tests of the file descriptor budget."""

from __future__ import annotations

import pytest

from headrace_broker.server.network.file_descriptor_limit import FileDescriptorBudget


@pytest.mark.parametrize("limit", [64, 200, 256, 1024, 20_000, 1 << 20])
def test_connection_limit_leaves_file_descriptors_for_logs(limit: int) -> None:
    budget = FileDescriptorBudget.for_limit(limit)
    others = limit - budget.connections_max - budget.open_segments_max
    assert budget.connections_max >= limit // 2
    assert budget.open_segments_max >= min(256, limit // 4)
    assert others >= min(128, limit // 4)
