"""One connection of an MQTT client, from CONNECT to DISCONNECT, and the hooks on its way.

Internal to `penstock.brokers.mqtt`.
"""
