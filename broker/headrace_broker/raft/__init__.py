"""The metadata quorum.  Today a quorum of one: what a single voter must persist and append (`quorum_of_one`).

Pure.  The shell that owns the disk asks this package what to write; it hears of committed records through the same
callback whatever the size of the quorum.
"""
