"""Delivery: from stored messages to the packets of subscribers.

Internal to `penstock.brokers.mqtt`.
"""
