"""Broker liveness: registration and heartbeats, probing for dead processes, and brokers suspected to be dead."""
