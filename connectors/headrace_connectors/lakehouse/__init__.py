"""Sink connector that loads topics into Delta, Iceberg and Parquet tables exactly once, with Spark's executors.

`sink.LakehouseSinkConnector` is the plug-in. Read the modules in the order of a micro-batch: `sink` (the task),
`driver.run` (the loop over micro-batches), `planner` (chooses the offset ranges), `driver.batch_loader` (runs the Spark
job and commits), `job.work` (runs on the executors: reads, converts and writes), `committers.recovery` (commits rows
and offsets together). Importing this package does not import pyspark, pyarrow or the libraries of the table formats.
"""
