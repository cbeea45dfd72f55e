"""Administration APIs: topics, partitions, records, configurations.

Internal to `penstock.brokers.kafka`.
"""
