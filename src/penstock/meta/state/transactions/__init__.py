"""The state machine of transactions.

Internal to `penstock.meta`.
"""
