"""MQTT in a cluster of several nodes: whose session runs where, and how its client gets there.

Internal to `penstock.brokers.mqtt`.
"""
