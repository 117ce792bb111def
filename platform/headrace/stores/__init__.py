"""Offset storage of a worker: the file of a standalone worker."""
