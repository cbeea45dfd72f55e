"""At start: the engines hold exactly the shards that the metadata names.

A process can die between a change of the metadata and what the engines do about it. The order of
every such change is chosen so that the metadata decides:

  * a shard that the metadata has and an engine lacks is created (its topic was being created, or
    its engine forgets)
  * a shard that an engine has and the metadata lacks is deleted (its topic's creation was being
    undone, or its deletion was nearly done). In a cluster only if the metadata say where it is now,
    or that its topic is being deleted; otherwise it goes into quarantine: see `Quarantine`
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

from penstock.engine.contract import ReplicatedEngine
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.plugins import plugin_name
from penstock.engine.routing.quarantine import QuarantinedShard
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
    unknown: list[QuarantinedShard] = []
    """Shards that the metadata do not name, and that are kept."""


class UnknownShards(Struct):
    """What becomes of shards in a cluster that the metadata do not name."""

    deleting: Collection[str]
    """Ids of topics that are being deleted."""
    doomed: Collection[tuple[str, ShardId]]
    """Storage types and shards that an operator has given up."""


def reconcile(
    handler: StorageEngineHandler,
    *,
    present: Collection[str],
    altered_since: int,
    where: str,
    unknown: UnknownShards | None = None,
) -> Reconciled:
    """Make the engines agree with the cache, which is complete. `present` names the storage types
    whose engines may hold something; `altered_since` is the revision of the last start. Without
    `unknown`, shards that the metadata do not name are deleted."""
    cache = handler.cache
    expected, lost = _expected(handler, altered_since)
    done = Reconciled(unknown=[])
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
        if unknown is not None:
            held -= _keep_unknown(handler, storage_type, held - here.keys(), unknown, done)
        _reconcile_engine(handler, storage_type, held, here, done)
    if done.created or done.deleted or done.altered:
        _log.info(
            "engines_reconciled",
            created=done.created,
            deleted=done.deleted,
            altered=done.altered,
        )
    return done


def _expected(
    handler: StorageEngineHandler, altered_since: int
) -> tuple[dict[str, dict[ShardId, bool]], set[ShardId]]:
    """Return the shards that this node should have, by storage type, with whether they were
    altered; and those that are lost."""
    expected: dict[str, dict[ShardId, bool]] = {}
    lost: set[ShardId] = set()
    for entry in handler.cache.entries():
        if entry.meta is not None and handler.node_id in entry.meta.replicas:
            if entry.meta.status == LOST:
                _log.error("shard_lost", shard=entry.name, topic=entry.topic.topic.name)
                lost.add(entry.id)
                continue
            shards = expected.setdefault(entry.topic.storage_type, {})
            shards[entry.id] = entry.topic.topic.revision > altered_since
    return expected, lost


def _keep_unknown(
    handler: StorageEngineHandler,
    storage_type: str,
    shards: set[ShardId],
    unknown: UnknownShards,
    done: Reconciled,
) -> set[ShardId]:
    """Put those of the shards into quarantine that must not be deleted; return them."""
    kept = {shard for shard in shards if not _may_go(handler, storage_type, shard, unknown)}
    for shard in sorted(kept):
        _log.error("shard_in_quarantine", shard=shard.name, storage_type=storage_type)
        done.unknown.append(QuarantinedShard(storage_type, shard.name))
    return kept


def _may_go(
    handler: StorageEngineHandler, storage_type: str, shard: ShardId, unknown: UnknownShards
) -> bool:
    """Return whether a shard that is not expected here may be deleted."""
    if shard.topic in unknown.deleting or (storage_type, shard) in unknown.doomed:
        return True
    entry = handler.cache.shards.get(shard.name)
    return entry is not None and entry.meta is not None and bool(entry.meta.in_sync)


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
    engine: object = handler.engines.get(storage_type) if expected else None
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
        if not entry.is_replicated and isinstance(engine, ReplicatedEngine):
            engine.end_replication(shard)  # it may have become the only copy just before the end
