"""Serving calls: gRPC methods, calls that wait without a thread, threads for blocking calls."""
