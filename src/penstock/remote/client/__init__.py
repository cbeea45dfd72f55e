"""The client side of the storage API: `RemoteBackend`, and failover between servers."""
