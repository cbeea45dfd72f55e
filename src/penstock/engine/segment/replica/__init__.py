"""The logs of a segment store's replicated shards, as replication uses them.

Internal to `penstock.engine.segment`.
"""
