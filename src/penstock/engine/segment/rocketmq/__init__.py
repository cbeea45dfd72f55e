"""RocketMQ's own configuration files: topics, properties, JSON.

Internal to `penstock.engine.segment`.
"""
