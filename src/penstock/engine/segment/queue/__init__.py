"""The ConsumeQueue of each shard: entries, epochs, the time index, saved shard states.

Internal to `penstock.engine.segment`.
"""
