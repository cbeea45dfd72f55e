"""Fetch requests: sessions, delayed responses, conversion of records to batches.

Internal to `penstock.brokers.kafka`.
"""
