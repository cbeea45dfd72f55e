"""Storage engines: their contract, the handler that routes shards to them, and the engines.

Each module and package of `__all__` is an interface of its own, because their users differ: front
ends may use `contract` only, the adapter uses `handler`, a node makes the engines. Import contracts
in `pyproject.toml` check this.
"""

__all__ = [
    "compaction",
    "contract",
    "engine_identity",
    "engine_set",
    "handler",
    "memory",
    "per_shard_engine",
    "replication",
    "rocksdb",
    "routing",
    "segment",
    "transactions",
]
