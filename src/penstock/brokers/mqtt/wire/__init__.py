"""MQTT packets: values, their encoding and decoding, and the rules of names.

Internal to `penstock.brokers.mqtt`.
"""
