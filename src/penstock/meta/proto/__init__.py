"""The messages of the meta service; `meta.proto` is what they are made of.

Internal to `penstock.meta`.
"""
