"""Topics: creation, options, routes from a key to a shard, offsets by time."""
