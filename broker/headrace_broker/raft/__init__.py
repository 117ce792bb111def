"""The metadata quorum: who leads it, what its log holds, and up to where a majority has it (KRaft: KIP-595, 630, 996).

`core.Raft` takes requests, answers, and the time; it returns `effects`, which `server.kraft` carries out in order:
what is persisted comes before what is sent, so a vote is on disk before anybody hears of it. One module per role:
`follower` (voters, observers and those without a leader), `nominees` (prospective and candidate), `leader`.
Pure: no clock, no sockets, no disk; random numbers come from the source that is handed in.
"""
