"""The server side: the gRPC service over a store, its threads and bounds, the parts of a node.

`node_server` has the `Server` that `penstock serve` runs; the other modules are internal to
`penstock.remote`.
"""

__all__ = ["node_server"]
