"""Shards in memory: fast, bounded, gone when the process ends."""

from penstock.engine.memory.engine import MemoryStorageEngine

__all__ = ["MemoryStorageEngine"]
