"""Bytes of records, queue entries and index files, and the functions that read and write them.

`select` chooses between the native extension and the reference implementation in `pure`; both
have the interface in `interface`.
"""
