"""Calls between the nodes of a cluster: connections, shards that another node leads, clocks."""
