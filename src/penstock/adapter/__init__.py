"""The storage adapter: topics become shards, and every front end reaches the engines through here.

`StorageDriverManager` resolves a topic to a route and its driver (`EngineStorageAdapter`), which
delegates to the engine handler. `requests` has the operations on records, each defined once;
`topics` has the metadata of topics. Only a node uses `engine_adapter`, to make the drivers.

A name is loaded with its first use: a program that needs `Message` does not load the engines.
"""

from typing import TYPE_CHECKING

from penstock.platform.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.adapter.driver_manager import StorageDriverManager
    from penstock.adapter.group_lag import lag_of
    from penstock.adapter.lag_metrics import GroupLagMetrics
    from penstock.adapter.locations import Locations, Message
    from penstock.adapter.node_links import NodeLinks
    from penstock.adapter.peer_metrics import PeerMetrics
    from penstock.adapter.record_watch import RecordWatch
    from penstock.adapter.shard_drivers import ShardDrivers
    from penstock.adapter.shard_handle import ShardHandle

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__,
        {
            "driver_manager": "StorageDriverManager",
            "group_lag": "lag_of",
            "lag_metrics": "GroupLagMetrics",
            "locations": "Locations Message",
            "node_links": "NodeLinks",
            "peer_metrics": "PeerMetrics",
            "record_watch": "RecordWatch",
            "shard_drivers": "ShardDrivers",
            "shard_handle": "ShardHandle",
        },
    )

__all__ = [
    "GroupLagMetrics",
    "Locations",
    "Message",
    "NodeLinks",
    "PeerMetrics",
    "RecordWatch",
    "ShardDrivers",
    "ShardHandle",
    "StorageDriverManager",
    "engine_adapter",
    "lag_of",
    "requests",
    "topics",
]
