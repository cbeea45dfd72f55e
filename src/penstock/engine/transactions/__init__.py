"""Transactions on any engine: the last stable offset, and the records of aborted ones."""
