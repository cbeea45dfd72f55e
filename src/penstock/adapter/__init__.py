"""The storage adapter: topics become shards, and every front end reaches the engines through here.

`StorageDriverManager` resolves a topic to a route and its driver (`EngineStorageAdapter`), which
delegates to the engine handler. `topics` has the metadata of topics: routes, options, partitioning,
administration, offsets by topic.
"""
