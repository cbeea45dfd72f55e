"""Which stored topic and partition an MQTT topic name belongs to, and back.

Internal to `penstock.brokers.mqtt`.
"""
