"""The replicated logs of a cluster: several Raft groups in one process, on one RocksDB.

    client ──▶ RaftNode (a thread) ──▶ MultiRaft (a step function) ──▶ RaftGroup ──▶ RaftCore
                    │                        │ one synced write a turn
                 Transport                Database

`MultiRaft` and all below it read no clock and open no socket: the simulation in the tests drives
the same code as a server does.
"""
