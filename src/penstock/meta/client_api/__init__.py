"""The clients of the meta service over a log, shared by standalone, Raft and remote clients.

Internal to `penstock.meta`.
"""
