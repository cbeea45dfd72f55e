"""The controller: placement of leaders, failover, decommissioning.

Internal to `penstock.meta`.
"""
