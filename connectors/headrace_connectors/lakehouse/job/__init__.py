"""The Spark job of a micro-batch: what the driver sends to the executors, and what they return."""
