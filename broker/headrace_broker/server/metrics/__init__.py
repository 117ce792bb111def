"""Prometheus metrics of a node, served on `headrace.metrics.listeners`; without these listeners it has no meter."""
