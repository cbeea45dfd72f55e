"""The internal port: frames, the handshake, connections to the other nodes.

Internal to `penstock.meta`.
"""
