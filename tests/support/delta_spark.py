"""Reads Delta tables with Spark and Delta Lake's own library, which Maven downloads to build/.

    python -m support.delta_spark '{"/lakehouse/orders": "/copies/orders"}'

copies the rows of each Delta table to a new directory of Parquet files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from support import apache, maven
from support.spark import SHORT_RUN_CONF

POM = Path(__file__).with_name("delta-pom.xml")
_CONF = {
    **SHORT_RUN_CONF,
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.memory": "1g",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}
_TIMEOUT_S = 900.0


def unavailable_reason() -> str | None:
    """Return why Delta tables cannot be read on this machine, or None if they can."""
    return apache.unavailable_reason()


def copy_to_parquet(tables: Mapping[Path, Path]) -> None:
    """Read Delta tables in a new process, and copy each one to a new directory of Parquet files."""
    names = {str(table): str(copy) for table, copy in tables.items()}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-m", "support.delta_spark", json.dumps(names)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stderr[-5000:]


def _main(tables: Mapping[str, str]) -> None:
    builder = SparkSession.Builder().config("spark.driver.extraClassPath", f"{maven.jars(POM)}/*")
    for key, value in _CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for table, copy in tables.items():
        spark.read.format("delta").load(table).write.parquet(copy)
    spark.stop()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
