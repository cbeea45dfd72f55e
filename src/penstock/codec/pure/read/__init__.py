"""The reading half of the reference implementation: records, columns, key index, tier records.

Internal to `penstock.codec.pure`.
"""
