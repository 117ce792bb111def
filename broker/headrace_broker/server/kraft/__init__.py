"""The KRaft metadata quorum: runs the Raft state machine and stores the metadata log, its snapshots and the image."""
