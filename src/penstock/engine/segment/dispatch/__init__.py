"""From the log to queues and indexes: the thread that dispatches new records.

Internal to `penstock.engine.segment`.
"""
