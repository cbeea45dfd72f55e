"""A store that another process writes, or that is closed, opened for reading only.

Internal to `penstock.engine.segment`.
"""
