"""Transactions on any engine: the last stable offset, and the records of aborted ones."""

from penstock.engine.transactions.aborted_offsets import BatchReader
from penstock.engine.transactions.stable_offsets import Ranges, StableOffsets, is_within

__all__ = ["BatchReader", "Ranges", "StableOffsets", "is_within"]
