"""The baseline of the lakehouse benchmark: Spark reads JSON files and writes Parquet, and delta-rs commits the files.

Usage: `python plain_spark.py DIRECTORY DDL TABLE`. Each file in DIRECTORY is one batch. The program prints `ready`,
loads one batch for each line of its standard input, and prints the seconds that the batch took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.transaction import AddAction, create_table_with_add_actions
from pyspark.sql import SparkSession


def main(directory: Path, ddl: str, table: Path) -> None:
    """Append the rows of each JSON file in `directory`, which have the columns `ddl`, to one Delta table."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "2g")
    builder = builder.config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    builder = builder.config("spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    print("ready", flush=True)
    for file in sorted(directory.glob("*.json")):
        sys.stdin.readline()
        start = time.perf_counter()
        part = table / f"part-{file.stem}"
        spark.read.schema(ddl).json(str(file)).write.parquet(str(part))
        commit(table, part)
        print(time.perf_counter() - start, flush=True)
    sys.stdin.readline()
    spark.stop()


def commit(table: Path, part: Path) -> None:
    """Add the Parquet files in the directory `part` to the Delta table."""
    actions = []
    for file in part.glob("*.parquet"):
        metadata = pq.read_metadata(file)
        stats = json.dumps({"numRecords": metadata.num_rows})
        modified_ms = int(file.stat().st_mtime * 1000)
        actions.append(AddAction(str(file.relative_to(table)), file.stat().st_size, {}, modified_ms, True, stats))
    if DeltaTable.is_deltatable(str(table)):
        delta = DeltaTable(table)
        delta.create_write_transaction(actions, "append", delta.schema(), [])
    else:
        schema = pq.read_schema(next(part.glob("*.parquet"))).remove_metadata()
        create_table_with_add_actions(str(table), Schema.from_arrow(schema), actions, "append", [])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
