"""Kafka's protocol in bytes: message schemas, record batches, cursors.

Internal to `penstock.brokers.kafka`.
"""
