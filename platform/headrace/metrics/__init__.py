"""Logging and Prometheus metrics of a worker."""
