"""Requests, results, records and errors as messages of `storage.proto` and `shards.proto`; used by
both sides.

Internal to `penstock.remote`.
"""
