"""The task runtime: processes, task threads, the transform chain, error tolerance, offsets."""
