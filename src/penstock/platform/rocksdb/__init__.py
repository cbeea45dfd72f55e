"""RocksDB as this package uses it: all that knows its Python binding is here."""
