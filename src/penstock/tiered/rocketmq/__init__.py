"""RocketMQ's tiered layout and classes: flat files, file segments, metadata store.

Internal to `penstock.tiered`.
"""
