"""Metadata APIs: nodes, topics, partitions, offsets, log directories."""
