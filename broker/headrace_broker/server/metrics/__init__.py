"""Prometheus' view of a node, on listeners of its own (`headrace.metrics.listeners`); without them nothing runs."""
