"""RocketMQ's own configuration files: topics, properties, JSON."""
