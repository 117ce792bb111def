"""The lakehouse's measuring stick: plain Spark reads the same records from JSON files, delta-rs writes the same table.

Run as a program: `python plain_spark.py DIRECTORY DDL`; each file of DIRECTORY is one batch. Prints seconds per batch.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from deltalake import write_deltalake
from pyspark.sql import SparkSession


def main(directory: Path, ddl: str) -> None:
    """Read, convert, append: file by file."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.driver.memory", "2g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    seconds = []
    for file in sorted(directory.glob("*.json")):
        began = time.perf_counter()
        table = spark.read.schema(ddl).json(str(file)).toArrow()
        write_deltalake(directory / "table", table, mode="append")
        seconds.append(time.perf_counter() - began)
    print(json.dumps(seconds))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
