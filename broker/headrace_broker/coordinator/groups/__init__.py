"""Consumer groups and their offsets: the state of the groups in one partition of `__consumer_offsets`."""
