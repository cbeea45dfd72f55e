"""Metadata APIs: nodes, topics, partitions, offsets, log directories.

Internal to `penstock.brokers.kafka`.
"""
