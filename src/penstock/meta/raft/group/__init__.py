"""One group of a node: its Raft core, its log and state in RocksDB, the requests that wait.

Internal to `penstock.meta`.
"""
