"""The task runtime: processes, task loops, the transform chain, error tolerance, offsets."""
