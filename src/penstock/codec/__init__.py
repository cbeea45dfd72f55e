"""Bytes of records, queue entries and index files, and the functions that read and write them.

`select` chooses between the native extension and the reference implementation in `pure`; both
have the interface in `interface`. Each module of `__all__` is an interface of its own; other
packages reach `pure` through `select` only.
"""

__all__ = [
    "append_interface",
    "codes",
    "deleted_ranges",
    "envelope",
    "format",
    "index_writer",
    "interface",
    "kafka_interface",
    "properties",
    "raw_message",
    "select",
    "validation",
]
