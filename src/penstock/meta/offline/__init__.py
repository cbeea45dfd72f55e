"""Reads of a node's metadata from its directory, while it runs or is stopped."""
