"""Consumer groups and their offsets: the shard behind one partition of `__consumer_offsets`."""
