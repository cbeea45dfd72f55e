"""Brings commit logs into their tiers: every shard by a task of its own, in parallel.

    commit log ──▶ ReadOnlyStore ──▶ CompositeFlatFile ──▶ chunks, then the manifest

The store is only read, and may be in use; what was committed when the job began is what it brings.
A node uploads by itself unless its setting `tiering.uploader`, or the topic's, is `spark`; topics
whose uploader is the node are left to it, so that the two do not take shards from each other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from penstock.engine.contract import ShardConfig
from penstock.errors import BadRequestError, StoreError
from penstock.pipeline.jobs.numbered_tasks import run_tasks
from penstock.pipeline.jobs.offloads.work import OffloadDone, OffloadTask, offload_one
from penstock.pipeline.jobs.spark_work import Progress, spark_work
from penstock.pipeline.jobs.topic_choice import chosen_shards
from penstock.pipeline.read.tiers import reachable
from penstock.pipeline.store.named_view import NamedView
from penstock.record import ShardId
from penstock.tiered import CHUNK_SIZE, TierConfig

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_config_decoder: Final = msgspec.msgpack.Decoder(ShardConfig)


class ShardOffload(Struct, frozen=True):
    """One shard: its offsets [start, end) were brought to the tier."""

    shard: str
    start: int
    end: int
    rows: int
    bytes: int
    gone: int
    """Offsets that the log deleted before their upload."""


class OffloadResult(Struct, frozen=True):
    path: str
    shards: list[ShardOffload]
    rows: int
    bytes: int
    """Of the records, as log and tier hold them; both were compared."""
    left_to_node: list[str]
    """Shards that their node uploads itself."""
    seconds: float


def offload(
    spark: SparkSession,
    path: str,
    tier: str | None = None,
    *,
    topics: Sequence[str] | None = None,
    take_over: bool = False,
    chunk_size: int = CHUNK_SIZE,
    progress: Progress | None = None,
) -> OffloadResult:
    """Bring everything that is committed in a store directory, and that the tier lacks, there.

    `tier` is its URL; without it, each topic's own. With `take_over`, topics that their node
    uploads are taken, too: safe, but the node takes them back. Raises `StoreError` when a shard
    could not be brought; the others are there then, and the next run goes on with the rest.
    """
    began = time.monotonic()
    if chunk_size < 1:
        raise BadRequestError(f"chunk_size is {chunk_size}; it must be above 0")
    tasks, left = plan(path, tier, topics=topics, take_over=take_over, chunk_size=chunk_size)
    names = {(task.topic, task.partition): task.name for task in tasks}
    done = _run(spark, tasks, progress)
    _raise_failures(done, names)
    shards = [
        ShardOffload(
            names[result.topic, result.partition],
            result.start,
            result.end,
            result.rows,
            result.bytes,
            result.gone,
        )
        for result in done
    ]
    return OffloadResult(
        path=path,
        shards=sorted(shards, key=lambda shard: shard.shard),
        rows=sum(shard.rows for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        left_to_node=left,
        seconds=time.monotonic() - began,
    )


def plan(
    path: str,
    tier: str | None,
    *,
    topics: Sequence[str] | None = None,
    take_over: bool = False,
    chunk_size: int = CHUNK_SIZE,
) -> tuple[list[OffloadTask], list[str]]:
    """Return a task for each shard that is to be brought, and the names of those that are left to
    their node."""
    tasks: list[OffloadTask] = []
    left: list[str] = []
    with NamedView(path) as view:
        for shard in chosen_shards(view, path, topics):
            config = _config(view, shard)
            if _node_uploads(config) and not take_over:
                left.append(shard.name)
                continue
            url = tier or ("" if config.tiering is None else config.tiering.url)
            if not url:
                raise BadRequestError(
                    f"{shard.name!r} has no tier: give one, for example file:///var/lib/tier"
                )
            stored, bounds = view.stored(shard), view.bounds(shard)
            aborted = view.aborted(shard, int(bounds.earliest), int(bounds.commit))
            tasks.append(
                OffloadTask(
                    name=shard.name,
                    root=view.root,
                    topic=stored.topic,
                    partition=stored.partition,
                    kind=view.kind(shard),
                    end=int(bounds.commit),
                    config=TierConfig(url=reachable(url), chunk_size=chunk_size),
                    aborted=tuple(aborted),
                )
            )
    return tasks, left


def _config(view: NamedView, shard: ShardId) -> ShardConfig:
    """Return how a shard is kept; a store without a node says nothing about it."""
    packed = view.state(shard).config
    return _config_decoder.decode(packed) if packed else ShardConfig()


def _node_uploads(config: ShardConfig) -> bool:
    return config.tiering is not None and config.tiering.uploader == "broker"


def _run(
    spark: SparkSession, tasks: Sequence[OffloadTask], progress: Progress | None
) -> list[OffloadDone]:
    if not tasks:
        return []
    # The longest first, so that no long one is left alone at the end.
    ordered = sorted(tasks, key=lambda task: task.end, reverse=True)
    with spark_work(spark, "offload", progress):
        return run_tasks(spark, ordered, offload_one, OffloadDone)


def _raise_failures(done: Sequence[OffloadDone], names: dict[tuple[str, int], str]) -> None:
    failed = [result for result in done if result.failure]
    if failed:
        first = failed[0]
        raise StoreError(
            f"{len(failed)} of {len(done)} shards could not be uploaded; "
            f"{names[first.topic, first.partition]!r}: {first.failure}"
        )
