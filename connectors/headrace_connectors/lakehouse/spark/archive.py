"""Java's archive of Spark's classes, which halves the start-up time of Spark's JVM.

(placeholder)
"""

from __future__ import annotations

from headrace_connectors.lakehouse.spark.java import Java


def options(java: Java) -> list[str]:
    return []
