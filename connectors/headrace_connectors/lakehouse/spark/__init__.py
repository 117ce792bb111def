"""Spark sessions: a JVM of the task, a cluster, or a Spark Connect server."""
