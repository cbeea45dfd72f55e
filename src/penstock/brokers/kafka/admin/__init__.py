"""What Kafka's admin clients ask: topics, partitions, records, configurations."""
