"""The herder: manages the connectors, their target states and statuses, and the instances that the worker runs."""
