"""Writes from Spark: staging, the commit protocol, targets."""
