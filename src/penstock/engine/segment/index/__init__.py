"""IndexFiles: from a key to the positions of its records, and their block checksums.

Internal to `penstock.engine.segment`.
"""
