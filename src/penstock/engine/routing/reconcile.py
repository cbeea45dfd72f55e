"""At start: the engines hold exactly the shards that the metadata names.

A process can die between a change of the metadata and what the engines do about it. The order of
every such change is chosen so that the metadata decides:

  * a shard that the metadata has and an engine lacks is created (its topic was being created, or
    its engine forgets)
  * a shard that an engine has and the metadata lacks is deleted (its topic's creation was being
    undone, or its deletion was nearly done)
  * a shard whose records are lost is neither created, for it would pass for what was there, nor
    deleted
  * topics altered since the last start give their engines the configuration again

Losing the metadata must not delete all data: engines that hold shards beside a log that has never
recorded anything are refused, and so is metadata older than that of the last start where it would
have shards deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from penstock.engine.handler import StorageEngineHandler
from penstock.engine.plugins import plugin_name
from penstock.errors import CorruptionError, RetryableError, SetupError
from penstock.meta import LOST
from penstock.platform.log import get_logger
from penstock.record import ShardId

_log: Final = get_logger(__name__)


class Reconciled(Struct):
    """How many shards were touched."""

    known: int = 0
    created: int = 0
    deleted: int = 0
    altered: int = 0
    failed: int = 0


def reconcile(
    handler: StorageEngineHandler,
    *,
    present: Collection[str],
    altered_since: int,
    where: str,
) -> Reconciled:
    """Make the engines agree with the cache, which is complete. `present` names the storage types
    whose engines may hold something; `altered_since` is the revision of the last start."""
    cache = handler.cache
    expected: dict[str, dict[ShardId, bool]] = {}
    lost: set[ShardId] = set()
    for entry in cache.entries():
        if entry.meta is not None and handler.node_id in entry.meta.replicas:
            if entry.meta.status == LOST:
                _log.error("shard_lost", shard=entry.name, topic=entry.topic.topic.name)
                lost.add(entry.id)
                continue
            shards = expected.setdefault(entry.topic.storage_type, {})
            shards[entry.id] = entry.topic.topic.revision > altered_since
    done = Reconciled()
    for storage_type in sorted({*present, *expected}):
        held = _held_by(handler, storage_type)
        if held is None:
            for shard in expected.get(storage_type, ()):
                handler.find(shard.name).is_open = True
            done.failed += 1
            continue
        held -= lost
        if held and cache.revision == 0:
            raise CorruptionError(
                where,
                position=0,
                reason=f"{len(held)} shards hold data, but the metadata is empty; "
                "was the directory `meta` lost?",
            )
        here = expected.get(storage_type, {})
        if held - here.keys() and cache.revision < altered_since:
            raise CorruptionError(
                where,
                position=0,
                reason=f"{len(held - here.keys())} shards hold data that the metadata does not "
                f"name, and it is at revision {cache.revision}, before {altered_since} of the last "
                "start; is it another cluster's, or was an old copy put back?",
            )
        _reconcile_engine(handler, storage_type, held, here, done)
    if done.created or done.deleted or done.altered:
        _log.info(
            "engines_reconciled",
            created=done.created,
            deleted=done.deleted,
            altered=done.altered,
        )
    return done


def _held_by(handler: StorageEngineHandler, storage_type: str) -> set[ShardId] | None:
    """Return the shards that an engine holds; None for one whose package is missing: that must not
    keep a node from serving what it has, and requests for its shards raise the same error."""
    try:
        return set(handler.list_shard(storage_type))
    except SetupError as error:
        if plugin_name(storage_type) is None:
            raise
        _log.error("engine_unavailable", cause=error, storage_type=storage_type)
        return None


def _reconcile_engine(
    handler: StorageEngineHandler,
    storage_type: str,
    held: set[ShardId],
    expected: dict[ShardId, bool],
    done: Reconciled,
) -> None:
    for shard in sorted(held - expected.keys()):
        handler.delete_shard(shard, storage_type)
        done.deleted += 1
    for shard, is_altered in expected.items():
        entry = handler.find(shard.name)
        config = entry.topic.config
        done.known += 1
        try:
            if shard not in held:
                handler.create_shard(shard, storage_type, config)
                done.created += 1
            elif is_altered:
                handler.alter_shard(shard, storage_type, config)
                done.altered += 1
        except RetryableError as error:
            # A full disk must not keep a node from serving what it has: the shard is created with
            # the first request that finds room, and altered by the next start.
            _log.error("shard_not_reconciled", cause=error, shard=shard.name)
            done.failed += 1
            if shard not in held:
                continue
        entry.is_open = True
