"""Where a worker keeps offsets: the standalone file now; Connect's internal topics with distributed mode."""
