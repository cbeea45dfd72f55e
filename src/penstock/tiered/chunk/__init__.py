"""Chunks and manifests: what a tier's objects hold.

Internal to `penstock.tiered`.
"""
