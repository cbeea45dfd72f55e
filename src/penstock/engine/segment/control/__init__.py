"""Changes of shards: creation, truncation, deletion, compaction, as records of the log."""
