"""The client side of the storage API: `RemoteBackend`, and failover between servers."""

from penstock.remote.client.backend import DEADLINE_S, RemoteBackend

__all__ = ["DEADLINE_S", "RemoteBackend"]
