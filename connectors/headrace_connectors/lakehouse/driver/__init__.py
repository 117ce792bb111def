"""The task's process: plans micro-batches, starts Spark jobs, and commits the files that the executors wrote."""
