"""Changes of shards: creation, truncation, deletion, compaction, as records of the log.

Internal to `penstock.engine.segment`.
"""
