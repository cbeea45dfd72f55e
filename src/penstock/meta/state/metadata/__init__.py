"""The metadata state machine: topics, shards, segments, nodes, data loss.

Internal to `penstock.meta`.
"""
