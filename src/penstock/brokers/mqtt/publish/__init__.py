"""Publishes become records, and are acknowledged when the storage has them.

Internal to `penstock.brokers.mqtt`.
"""
