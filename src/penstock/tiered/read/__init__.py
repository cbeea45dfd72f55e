"""Reads from a tier: fetching, caches, streams of chunks."""
