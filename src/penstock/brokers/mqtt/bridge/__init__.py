"""Bridges to other brokers: `relay` passes packets on, `bridge` keeps both sides connected.

Internal to `penstock.brokers.mqtt`.
"""
