"""Old data of a shard in flat files, on the local disk or in an object store.

    TieredDispatcher ──▶ CompositeFlatFile ──▶ chunks and a manifest ──▶ provider
    readers          ──▶ Fetcher           ◀──────────────────────────┘

Importing this package opens nothing and starts nothing: Spark workers use it without a node.
"""
