"""Which engine and which segment of a shard serves a request, and the upkeep of all shards."""
