"""The server side: the gRPC service over a store, its threads and bounds, the parts of a node.

`node_server` has the `Server` that `penstock serve` runs, `mqtt_front_end` says when it serves MQTT
clients; the other modules are internal to `penstock.remote`.
"""

__all__ = ["mqtt_front_end", "node_server"]
