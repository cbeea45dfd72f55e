"""Bytes from clients become records: one package for each protocol."""

__all__ = ["kafka", "mqtt"]
