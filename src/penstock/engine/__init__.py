"""Storage engines: their contract, the handler that routes shards to them, and the engines."""
