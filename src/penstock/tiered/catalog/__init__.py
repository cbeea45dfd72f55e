"""The catalog of a tier: which topics it holds, and how a node is restored from it.

Internal to `penstock.tiered`.
"""
