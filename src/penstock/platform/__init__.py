"""The machine as the store sees it: disk, clock, log, metrics, addresses, gRPC and RocksDB.

Everything above reaches files, time and the network through these modules, so that tests can put
a simulated disk or clock in their place. Each module of `__all__` is an interface of its own, so
that a program loads only what it uses.
"""

__all__ = [
    "addresses",
    "calls",
    "clock",
    "clock_guard",
    "clock_metrics",
    "data_directory",
    "disk",
    "layout",
    "lazy_exports",
    "local_disk",
    "local_lock",
    "log",
    "metrics",
    "rocksdb",
    "service_manager",
]
