"""Sockets of Kafka clients: connections, receive buffers, send queues.

Internal to `penstock.brokers.kafka`.
"""
