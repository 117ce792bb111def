"""Replication of partitions: what a leader knows of its followers, and what a follower makes of its leader's answers.

Pure: offsets, epochs and times come in, decisions go out.  Who sends and who writes is `server`'s affair.
"""
