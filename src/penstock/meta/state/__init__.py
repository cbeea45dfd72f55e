"""The state machines: pure functions from a view of keys and values and a command to an answer.

No clock, no random, no I/O: time comes in the command, identifiers too. `metadata` holds topics,
shards, segments, nodes, leases and counters; `offset` holds consumers' offsets.

Internal to `penstock.meta`.
"""
