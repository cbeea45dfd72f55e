"""Produce requests: validation of batches, decompression limits, appends.

Internal to `penstock.brokers.kafka`.
"""
