"""Delivery: from stored messages to the packets of subscribers."""
