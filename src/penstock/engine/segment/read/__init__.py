"""Reads of records by offset, key and time, one or many, decoded or as raw ranges.

Internal to `penstock.engine.segment`.
"""
