"""Writes from Spark: staging, the commit protocol, targets.

Internal to `penstock.pipeline`.
"""
