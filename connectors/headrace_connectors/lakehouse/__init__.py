"""Sink connector that loads topics into Delta or Parquet tables exactly once, with Spark Structured Streaming.

`sink.LakehouseSinkConnector` is the plug-in. Read the modules in this order: `sink` (the task), `kafka_source` (how
Spark reads topics), `loader` (writes one micro-batch from Spark to the tables), `writers` (how a table commits rows and
offsets together). Importing this package does not import pyspark or deltalake. A task imports them when it starts.
"""
