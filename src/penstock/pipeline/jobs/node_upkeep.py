"""Compaction and expiry by the node that has the store open: it holds the lock, so it is asked.

The node works while others write, so a shard's records are counted by the node itself (compaction)
or by where its partitions began before and begin after (expiry).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from difflib import get_close_matches
from typing import TYPE_CHECKING

from penstock.adapter.requests import Compact
from penstock.api.requests.node import RunUpkeep
from penstock.api.requests.topics import DescribeTopic, ListTopics
from penstock.errors import BadRequestError
from penstock.pipeline.jobs.spark_work import Progress
from penstock.pipeline.jobs.upkeep_result import ShardUpkeep, UpkeepResult
from penstock.pipeline.read.endpoint import connect

if TYPE_CHECKING:
    from penstock.api import TopicInfo
    from penstock.remote.client import RemoteBackend


def is_node(path: str) -> bool:
    """Say whether this is `host:port` of a node, not a directory."""
    host, separator, port = path.rpartition(":")
    return bool(separator and host and port.isdigit() and "/" not in path)


def compact_on_node(
    address: str, topics: Sequence[str] | None, progress: Progress | None
) -> UpkeepResult:
    """Have the node compact the topics whose cleanup says so; others are left alone."""
    began = time.monotonic()
    results: list[ShardUpkeep] = []
    rows = size = 0
    with closing(connect(address)) as backend:
        chosen = _chosen(backend, address, topics)
        for done, topic in enumerate(chosen):
            if progress is not None:
                progress("compact", done, len(chosen))
            before = backend.execute(DescribeTopic(topic.name, namespace=topic.namespace))
            removed = backend.execute(Compact(topic.name, namespace=topic.namespace))
            rows += removed.records
            size += removed.size
            if removed.records:
                after = backend.execute(DescribeTopic(topic.name, namespace=topic.namespace))
                results += _shards(before, after, removed.records)
    return UpkeepResult(address, results, rows, size, 0, time.monotonic() - began)


def expire_on_node(address: str, progress: Progress | None = None) -> UpkeepResult:
    """Have the node apply retention to everything that it keeps."""
    began = time.monotonic()
    results = []
    size = 0
    with closing(connect(address)) as backend:
        topics = backend.execute(ListTopics())
        before = [
            backend.execute(DescribeTopic(topic.name, namespace=topic.namespace))
            for topic in topics
        ]
        if progress is not None:
            progress("expire", 0, len(before))  # the node expires all of them in one call
        backend.execute(RunUpkeep())
        for topic in before:
            after = backend.execute(DescribeTopic(topic.name, namespace=topic.namespace))
            results += _shards(topic, after, None)
            size += sum(partition.size for partition in topic.partitions)
            size -= sum(partition.size for partition in after.partitions)
    rows = sum(result.removed for result in results)
    # Others may have written meanwhile: a size is not below nothing.
    return UpkeepResult(address, results, rows, max(0, size), 0, time.monotonic() - began)


def _chosen(backend: RemoteBackend, address: str, topics: Sequence[str] | None) -> list[TopicInfo]:
    there = {_shown(topic): topic for topic in backend.execute(ListTopics())}
    for name in topics or ():
        if name not in there:
            near = get_close_matches(name, there, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadRequestError(f"topic {name!r} does not exist at {address}{hint}")
    return [topic for name, topic in there.items() if topics is None or name in topics]


def _shown(topic: TopicInfo) -> str:
    return topic.name if topic.namespace == "default" else f"{topic.namespace}/{topic.name}"


def _shards(before: TopicInfo, after: TopicInfo, removed: int | None) -> list[ShardUpkeep]:
    """Return a line for each partition. The node counts what it compacted by topic: with several
    partitions, the first one's line has the sum."""
    results = []
    for number, (old, new) in enumerate(zip(before.partitions, after.partitions, strict=False)):
        if removed is None and (old.problem or new.problem):
            continue  # without a leader nothing was done
        count = new.earliest - old.earliest
        if removed is not None:
            count = removed if number == 0 else 0
        name = f"{_shown(before)}_{old.partition}"
        results.append(ShardUpkeep(name, old.earliest, new.earliest, new.commit, count))
    return results
