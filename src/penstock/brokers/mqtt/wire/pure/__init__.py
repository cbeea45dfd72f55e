"""The codec in Python: the reference that the native codec must equal.

Internal to `penstock.brokers.mqtt.wire`.
"""
