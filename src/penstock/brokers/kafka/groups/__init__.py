"""Consumer groups of the classic protocol: the group APIs over the node's `GroupCoordinator`, and
offsets over its `OffsetManager`.

Internal to `penstock.brokers.kafka`.
"""
