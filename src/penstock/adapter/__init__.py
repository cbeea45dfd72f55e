"""A topic becomes a shard: what brokers and programs call.

See `StorageDriverManager` (coroutines) and `TopicStorage` (the same operations, synchronous).
"""
