"""Stores as Spark's driver opens them: by name or directory, with their tiers.

The names below find the store of a directory; `penstock store` uses them, too. The other modules
are internal to `penstock.pipeline`.
"""

from penstock.pipeline.store.node_directory import StoreDirectory, find_store, store_root

__all__ = ["StoreDirectory", "find_store", "store_root"]
