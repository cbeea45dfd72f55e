"""Maintenance of a tier: retention, compaction, scrubbing, damage, repair.

Internal to `penstock.tiered`.
"""
