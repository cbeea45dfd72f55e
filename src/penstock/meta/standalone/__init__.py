"""The meta service of a single node: a log of its own instead of Raft.

Internal to `penstock.meta`.
"""
