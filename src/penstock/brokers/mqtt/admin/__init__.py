"""Administration of the front end over MQTT itself: requests to `$penstock/…` and their answers.

Internal to `penstock.brokers.mqtt`.
"""
