"""The partitions of a broker: leading and following them, fetching from leaders, and fetch sessions."""
