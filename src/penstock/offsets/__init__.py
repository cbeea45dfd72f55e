"""What groups of consumers have read: committed to a cache and saved in batches, or directly.

See `OffsetManager`.
"""
