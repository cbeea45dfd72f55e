"""Who receives the messages of a topic: subscriptions, the tree of filters, cached routes.

Internal to `penstock.brokers.mqtt`.
"""
