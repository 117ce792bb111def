"""Prometheus metrics of a node, served on `headrace.metrics.listeners`; a node without them measures nothing."""
