"""The meta service over gRPC, for nodes and tools outside of the groups.

Internal to `penstock.meta`.
"""
