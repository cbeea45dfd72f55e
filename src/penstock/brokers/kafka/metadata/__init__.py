"""What Kafka clients ask about the cluster: topics, partitions, offsets, log directories."""
