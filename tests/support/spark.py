"""Spark's configuration for tests."""

from __future__ import annotations

# A JVM that loads a few records needs half of the CPU time without the optimizing compiler (C2).
SHORT_RUN_CONF = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
