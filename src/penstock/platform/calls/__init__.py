"""Serving calls: gRPC methods, calls that wait without a thread, threads for blocking calls.

Each module of `__all__` is an interface of its own: only `grpc` loads gRPC.
"""

__all__ = ["blocking_pool", "grpc", "parked_calls", "waiting_calls", "wakeup"]
