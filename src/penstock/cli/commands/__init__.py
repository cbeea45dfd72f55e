"""The commands of `penstock`, one module or folder each.

Internal to `penstock.cli`.
"""
