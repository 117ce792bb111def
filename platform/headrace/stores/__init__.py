"""The stores of a worker for configurations, statuses and source offsets: in memory, in a file, or in topics."""
