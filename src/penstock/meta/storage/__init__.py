"""RocksDB under the meta service: the database, the log's format, unflushed rows."""
