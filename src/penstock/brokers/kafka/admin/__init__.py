"""Administration APIs: topics, partitions, records, configurations."""
