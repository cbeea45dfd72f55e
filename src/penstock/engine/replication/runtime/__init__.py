"""Replication in a node: the thread that runs `ReplicaCore`, and what carries its effects out.

    assignments    from the metadata to what the core has to know
    replicator     the thread of the core, its inbox, its effects
    shard_replica  one shard, for the threads that write to it
    peer_channel   how replicas reach each other

`proposals`, `syncs` and `takeovers` do slow work on threads of their own (`batch_worker`).
A node starts `replicator` with its `metrics` and `proposals`, the storage API reports positions of
`shard_replica`; the other modules are internal to `penstock.engine.replication`.
"""

__all__ = ["metrics", "proposals", "replicator", "shard_replica"]
