"""Spark's configuration for tests."""

from __future__ import annotations

# A JVM that loads a few records needs half of the CPU time without the optimizing compiler (C2).
SHORT_RUN_CONF = {"spark.master": "local[2]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
SHORT_RUN_PROPS = {**SHORT_RUN_CONF, "lakehouse.java.archive": "false"}
"""The same for a connector. A connector that is idle would make an archive of Spark's classes."""
