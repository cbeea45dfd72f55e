"""Features beyond the standard: rewriting, automatic and exclusive subscriptions, `$SYS` topics,
delayed messages, statistics of slow subscribers, Sparkplug certificates.

Internal to `penstock.brokers.mqtt`.
"""
