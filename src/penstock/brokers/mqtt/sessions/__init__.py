"""Sessions: what the node keeps of a client between its connections.

Internal to `penstock.brokers.mqtt`.
"""
