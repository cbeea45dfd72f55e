"""Bytes from clients become records: one package for each protocol, on the sockets of `network`."""

__all__ = ["kafka", "mqtt", "network"]
