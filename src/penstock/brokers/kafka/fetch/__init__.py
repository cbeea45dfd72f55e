"""Fetch requests: sessions, delayed responses, conversion of records to batches."""
