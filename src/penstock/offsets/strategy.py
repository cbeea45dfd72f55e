"""The Protocol of the two strategies to store a commit, and the types they share.

OffsetCacheManager     enable_cache = true: local RocksDB now, the meta service in batches
OffsetStorageManager   enable_cache = false: the meta service, before the call returns
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.meta import INT_MAX, METADATA_SIZE_MAX, check_text
from penstock.record import Offset, ShardId

NO_LEADER_EPOCH: Final = -1


class OffsetCommit(Struct, frozen=True, gc=False):
    """An offset to commit: the next one to read, with the consumer's metadata."""

    offset: Offset
    metadata: str = ""
    leader_epoch: int = NO_LEADER_EPOCH


class GroupCommit(Struct, frozen=True):
    """Offsets of one group, by the names of shards, for a commit of many groups."""

    namespace: str
    group: str
    offsets: Mapping[str, OffsetCommit]


def check_offset(offset: object) -> int:
    if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= INT_MAX:
        raise not_an_offset(offset)
    return offset


def not_an_offset(offset: object) -> BadRequestError:
    return BadRequestError(f"an offset is a number from 0 on, not {offset!r}")


def check_metadata(metadata: object) -> str:
    if metadata == "":
        return ""
    text = check_text("metadata", metadata)
    if len(text) > METADATA_SIZE_MAX:
        raise BadRequestError(
            f"metadata has {len(text)} characters; the limit is {METADATA_SIZE_MAX}"
        )
    return text


def check_leader_epoch(leader_epoch: object) -> int:
    if not isinstance(leader_epoch, int) or not -INT_MAX <= leader_epoch <= INT_MAX:
        raise BadRequestError(f"a leader epoch is a number, not {leader_epoch!r}")
    return leader_epoch


def check_commit(commit: OffsetCommit) -> OffsetCommit:
    check_offset(commit.offset)
    check_metadata(commit.metadata)
    check_leader_epoch(commit.leader_epoch)
    return commit


def check_shard(shard: object) -> ShardId:
    if not isinstance(shard, ShardId):
        raise BadRequestError(f"a shard is a ShardId, not {shard!r}")
    if ShardId.parse(f"{check_text('a topic', shard.topic)}_{shard.partition}") != shard:
        raise BadRequestError(f"{shard!r} is not a valid shard")
    return shard
