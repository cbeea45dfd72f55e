"""Target of an import, a store directory or a running node, and the journal of its imports.

The journal of a directory is stored in the store. The journal of a node is stored on this machine,
by default in the user's state directory, so that a repeated import finds it.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Final

from penstock.api.requests.topics import DescribeTopic, ListTopics
from penstock.engine.segment import ReadOnlyStore
from penstock.errors import BadRequestError, NotAStoreError
from penstock.pipeline.jobs.node_upkeep import is_node
from penstock.pipeline.read.endpoint import connect
from penstock.pipeline.store.node_directory import DEFAULT_NAMESPACE


class ImportPlace:
    def __init__(
        self, path: str, journal: str | None = None, *, lock_timeout_s: int | None = None
    ) -> None:
        """`lock_timeout_s`: how long to wait for a process that has the store open."""
        self.path: Final = path
        self.is_node: Final = is_node(path)
        self._lock_timeout_s: Final = lock_timeout_s
        if journal is not None and not self.is_node:
            raise BadRequestError("a journal is only for imports into a running node: leave it out")
        self._journals: Final = Path(journal) if journal else self._default_journals()

    def _default_journals(self) -> Path:
        if not self.is_node:
            return Path(self.path) / "penstock" / "sink"
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        return Path(state) / "penstock" / "imports"

    @property
    def identity(self) -> list[str]:
        """Distinguishes imports of the same rows into several targets that share one journal."""
        return [self.path] if self.is_node else []

    def options(self) -> dict[str, str]:
        """Return the options of the sink that say where rows go."""
        waits = {} if self._lock_timeout_s is None else {"lockTimeout": str(self._lock_timeout_s)}
        if not self.is_node:
            return {"path": self.path, **waits}
        return {"endpoint": self.path, "stagingPath": str(self._journals), **waits}

    def journal(self, name: str) -> Path:
        """Return the directory of a sink."""
        return self._journals / name

    def records(self, topic: str | None = None) -> int:
        """Return how many records were ever committed to a topic, or to all."""
        if self.is_node:
            return self._records_of_node(topic)
        try:
            with ReadOnlyStore.open(self.path) as view:
                shards = [shard for shard in view.shards() if topic in (None, shard.topic)]
                return sum(int(view.bounds(shard).commit) for shard in shards)
        except NotAStoreError:
            return 0

    def _records_of_node(self, topic: str | None) -> int:
        with closing(connect(self.path)) as backend:
            there = {info.name for info in backend.execute(ListTopics(DEFAULT_NAMESPACE))}
            topics = [
                backend.execute(DescribeTopic(name)) for name in there if topic in (None, name)
            ]
        return sum(int(part.latest) for info in topics for part in info.partitions)
