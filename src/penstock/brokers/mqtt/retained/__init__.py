"""Retained messages: the compacted topic that stores them, and the index in memory.

Internal to `penstock.brokers.mqtt`.
"""
