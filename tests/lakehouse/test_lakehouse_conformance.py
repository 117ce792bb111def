"""Runs the conformance suite `SelfReadingSinkConformance` for LakehouseSinkConnector, with real Spark.

The suite is for sinks that consume their topics themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark")
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from headrace.testing.conformance import SelfReadingSinkConformance
from headrace_connectors.lakehouse.sink import LakehouseSinkConnector
from support.spark import SHORT_RUN_PROPS

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]


class TestLakehouseSink(SelfReadingSinkConformance):
    plugin = LakehouseSinkConnector
    is_exactly_once = True
    reset_loads_again = True
    poison = b"not JSON"
    timeout_s = 120.0  # Spark's start and first batch may need more than a minute on a busy machine

    @pytest.fixture
    def connect_worker_config(self) -> dict[str, str]:
        return {"task.isolation": "process"}

    def config(self) -> dict[str, str]:
        return {
            "name": "conformance",
            "connector.class": "LakehouseSink",
            "topics": "test",
            "lakehouse.path": str(self.directory / "tables"),
            "lakehouse.trigger.interval.ms": "200",
            "lakehouse.schema": "number BIGINT",
            **SHORT_RUN_PROPS,
        }

    def invalid_configs(self) -> Sequence[Mapping[str, str]]:
        return [{}, self.config() | {"lakehouse.trigger.interval.ms": "soon"}]

    def value(self, number: int) -> bytes:
        return b'{"number": %d}' % number

    def stored(self, topic: str) -> Sequence[Any]:
        try:
            table = DeltaTable(self.directory / "tables" / topic)
        except TableNotFoundError:
            return []
        return sorted(row["number"] for row in table.to_pyarrow_table().to_pylist())
