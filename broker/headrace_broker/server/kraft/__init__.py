"""The metadata quorum at work: clock, disk and peers of its core, metadata log, snapshots, committed image."""
