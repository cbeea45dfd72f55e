"""Produce requests: validation of batches, decompression limits, appends."""
