"""The HTTP port: metrics, health, liveness and readiness.

Internal to `penstock.remote`.
"""
