"""Stores as Spark's driver opens them: by name or directory, with their tiers."""
