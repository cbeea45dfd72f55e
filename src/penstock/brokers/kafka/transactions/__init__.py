"""Transactions: coordinator and participants, completion, and the stable offsets of shards.

Internal to `penstock.brokers.kafka`.
"""
