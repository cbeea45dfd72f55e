"""The state machine of consumer groups and their offsets.

Internal to `penstock.meta`.
"""
