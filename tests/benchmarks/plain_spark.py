"""The baseline of the lakehouse benchmark: plain Spark reads the records from JSON files, delta-rs writes the table.

Usage: `python plain_spark.py DIRECTORY DDL`. Each file in DIRECTORY is one batch. The program prints the seconds that
each batch took.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from deltalake import write_deltalake
from pyspark.sql import SparkSession


def main(directory: Path, ddl: str) -> None:
    """Read each JSON file in `directory` with Spark and the schema `ddl`, and append the rows to one Delta table."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    seconds = []
    for file in sorted(directory.glob("*.json")):
        start = time.perf_counter()
        table = spark.read.schema(ddl).json(str(file)).toArrow()
        write_deltalake(directory / "table", table, mode="append")
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
