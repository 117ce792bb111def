"""Kafka topics into lakehouse tables (Delta, Parquet), exactly once, by Spark Structured Streaming through PySpark.

`sink.LakehouseSinkConnector` is the plug-in. Reading order: `sink` (the task), `kafka_source` (how Spark reads topics),
`loader` (one micro-batch from Spark to the tables), `writers` (how a table commits rows and offsets together).
Importing this package imports neither pyspark nor deltalake: the task does, when it starts.
"""
