"""Reads from a tier: fetching, caches, streams of chunks.

Internal to `penstock.tiered`.
"""
