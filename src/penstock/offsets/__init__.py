"""Committed offsets of consumer groups: cached and saved in batches, or saved directly.

`OffsetManager` serves a single node; `ClusterOffsetManager` routes each group to its coordinator.
"""
