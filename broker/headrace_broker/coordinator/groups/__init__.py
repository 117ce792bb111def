"""Implements the group coordinator's shard: the classic groups and committed offsets of one partition."""
