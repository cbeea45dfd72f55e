"""The metadata state machine: topics, shards, segments, nodes, data loss."""
