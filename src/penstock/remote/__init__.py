"""The storage API over gRPC: the server's side and the client's."""

__all__ = ["client", "peers", "server"]
