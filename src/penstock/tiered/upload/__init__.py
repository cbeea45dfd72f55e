"""Uploads: the dispatcher, the committed part of the log, chunks as they are built.

Internal to `penstock.tiered`.
"""
