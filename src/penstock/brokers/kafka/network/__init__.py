"""Sockets of Kafka clients: connections, receive buffers, send queues."""
