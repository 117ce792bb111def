"""The KRaft metadata quorum: I/O for the Raft state machine, the metadata log, its snapshots, the committed image."""
