"""A node: all parts of a store, started and stopped together, and the ways to open one.

The modules of `__all__` are in different layers, and so they are imported by their own names:
`node` is below the storage API over gRPC, `open_store` and `connect_store` are above it.
"""

__all__ = ["component_settings", "connect_store", "node", "open_store"]
