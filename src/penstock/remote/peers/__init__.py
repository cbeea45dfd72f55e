"""Calls between the nodes of a cluster: connections, shards that another node leads, clocks.

`replica_positions` asks every replica of a shard where it is, also for `penstock cluster`; the
other modules are internal to `penstock.remote`.
"""

__all__ = ["replica_positions"]
