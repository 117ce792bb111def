"""Tests that the C extensions of aiokafka and crc32c load without importing these packages.

The packages can still be imported later.
"""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns
batch = build_batch(RecordColumns(values=[b"v"], keys=[b"k"], timestamps=1), compression=1)
assert read_columns(batch).keys == [b"k"]
assert not [name for name in sys.modules if name.partition(".")[0] == "aiokafka"], "left behind"
heavy = {"asyncio", "ssl", "importlib.metadata", "typing_extensions", "cramjam"} & sys.modules.keys()
assert not heavy, heavy
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
for codec in (0, 1, 2, 3, 4):
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1000)
    builder.append(0, 5, b"k", b"v", [])
    batch = builder.build()
    assert [record.value for record in DefaultRecordBatch(bytes(batch))] == [b"v"]
    assert read_columns(batch).values == [b"v"]
"""


def test_c_extensions_load_without_importing_their_packages_and_the_packages_can_be_imported_later() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", SCRIPT], check=True)
