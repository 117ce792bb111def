"""Prometheus metrics of a node, served on `headrace.metrics.listeners`.

Without this config, the node measures nothing.
"""
