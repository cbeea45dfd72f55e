"""The CommitLog: its files, the write manager, and what happens when the disk fails.

Internal to `penstock.engine.segment`.
"""
