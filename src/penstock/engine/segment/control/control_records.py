"""Control records: what is done to a shard beyond appending, as records of its companion queue.

    orders-01J_0        the shard
    orders-01J%ctl_0    its companion, in the same log; replicated and acknowledged like data

    {"command":"delete_offsets","version":1,"ranges":[[3,5],[9,10]]}
    {"command":"delete_before","version":1,"offset":4096}
    {"command":"delete_before","version":1,"offset":4096,"restates_from":17}
    {"command":"seal","version":1}

The body is JSON, so that people can read it with any tool that shows RocketMQ's messages. Commands
say which offsets they mean and can be folded again without harm. A command that this release does
not know is refused by name: skipping it would show deleted records.

There is not a command to open a sealed shard again: what was promised to be complete stays so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from penstock.codec.deleted_ranges import coalesce
from penstock.codec.format import CONTROL_SUFFIX
from penstock.errors import BadRequestError, NotSupportedError
from penstock.record import Record, ShardId, StoredRecord

CONTROL_VERSION: Final = 1

RANGES_MAX: Final = 8192
"""Ranges in one command: at most 350 KB of JSON, far below the limit of a record."""

TOPIC_SIZE_MAX: Final = 255 - len(CONTROL_SUFFIX)
"""A topic is a directory, whose name takes 255 bytes at most; the companion's is longer."""

PARTITION_MAX: Final = (1 << 31) - 1

_LEGAL_TOPIC: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


class DeleteOffsets(Struct, frozen=True, kw_only=True, tag="delete_offsets", tag_field="command"):
    """The records in these half-open ranges are gone; the ends of the shard do not move."""

    version: int = CONTROL_VERSION
    ranges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not self.ranges:
            raise BadRequestError("a deletion names at least one range")
        for start, end in self.ranges:
            if not 0 <= start < end <= _OFFSET_MAX:
                raise BadRequestError(f"[{start}, {end}) is not a range of offsets")


class DeleteBefore(Struct, frozen=True, kw_only=True, tag="delete_before", tag_field="command"):
    """The shard begins at `offset`, or where it began before if that is later."""

    version: int = CONTROL_VERSION
    offset: int
    restates_from: int | UnsetType = UNSET
    """The commands from this offset of the companion queue up to this one say what all earlier
    ones said; unset: they do not."""

    def __post_init__(self) -> None:
        if not 0 <= self.offset <= _OFFSET_MAX:
            raise BadRequestError(f"{self.offset} is not an offset")


class Seal(Struct, frozen=True, kw_only=True, tag="seal", tag_field="command"):
    """The shard takes no more records."""

    version: int = CONTROL_VERSION


Command = DeleteOffsets | DeleteBefore | Seal

_OFFSET_MAX: Final = (1 << 63) - 1


class _Head(Struct):
    """What every version of every command has."""

    command: str
    version: int


_encoder: Final = msgspec.json.Encoder()
_head_decoder: Final = msgspec.json.Decoder(_Head)
_decoder: Final[msgspec.json.Decoder[Command]] = msgspec.json.Decoder(Command)
_KNOWN: Final = frozenset(
    str(command_type.__struct_config__.tag) for command_type in (DeleteOffsets, DeleteBefore, Seal)
)


def delete_offsets(offsets: Iterable[int]) -> list[DeleteOffsets]:
    """Return the commands that delete single offsets: as many as the bound on ranges wants."""
    ordered = sorted(offsets)
    if not ordered:
        return []
    # Mostly they follow each other: only where one does not, a range ends.
    firsts = [after for before, after in pairwise(ordered) if after - before > 1]
    lasts = [before for before, after in pairwise(ordered) if after - before > 1]
    starts, ends = [ordered[0], *firsts], [*lasts, ordered[-1]]
    return delete_ranges((start, end + 1) for start, end in zip(starts, ends, strict=True))


def delete_ranges(ranges: Iterable[tuple[int, int]]) -> list[DeleteOffsets]:
    """Return the commands that delete half-open ranges, which may come in any order."""
    merged = coalesce(ranges)
    return [
        DeleteOffsets(ranges=tuple(merged[start : start + RANGES_MAX]))
        for start in range(0, len(merged), RANGES_MAX)
    ]


def encode(command: Command) -> Record:
    """Return the record to append to the companion queue."""
    return Record(value=_encoder.encode(command))


def decode(source: StoredRecord | bytes) -> Command:
    """Return the command in a control record, or in its body.

    Raises NotSupportedError for what only a newer release knows, BadRequestError for anything that
    is not a command: a client of another system may have written it.
    """
    body = source if isinstance(source, bytes) else source.value
    where = "" if isinstance(source, bytes) else f" at offset {source.offset}"
    try:
        head = _head_decoder.decode(body or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequestError(f"control record{where} is not a command: {error}") from error
    if head.version < 1:
        raise BadRequestError(f"control record{where} is not a command: version {head.version}")
    if head.version > CONTROL_VERSION or head.command not in _KNOWN:
        raise NotSupportedError(
            f"control record{where}: command {head.command!r} of version {head.version} "
            f"needs a newer release of Penstock"
        )
    try:
        return _decoder.decode(body or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequestError(f"control record{where} is not a command: {error}") from error


def is_control(shard: ShardId) -> bool:
    return shard.topic.endswith(CONTROL_SUFFIX)


def control_shard(shard: ShardId) -> ShardId:
    """Return the companion of a data shard."""
    assert not is_control(shard), f"{shard.name} is a companion itself"
    return ShardId(shard.topic + CONTROL_SUFFIX, shard.partition)


def data_shard(shard: ShardId) -> ShardId:
    """Return the shard of which `shard` is the companion."""
    assert is_control(shard), f"{shard.name} is not a companion"
    return ShardId(shard.topic.removesuffix(CONTROL_SUFFIX), shard.partition)


def check_topic(topic: str) -> None:
    """Refuse a topic that a user may not create: RocketMQ must be able to read it, a directory to
    have its name, and only the store may write commands.

    Topics of 128 characters and more make records of version 2, which RocketMQ 5 reads.
    """
    if not _LEGAL_TOPIC.fullmatch(topic):
        raise BadRequestError(
            f"topic {topic!r} is not legal: only letters and digits of ASCII, and % | _ - are"
        )
    if len(topic) > TOPIC_SIZE_MAX:
        raise BadRequestError(
            f"topic {topic!r} has {len(topic)} characters; the limit is {TOPIC_SIZE_MAX}"
        )
    if topic.endswith(CONTROL_SUFFIX):
        raise BadRequestError(f"topic {topic!r} ends with {CONTROL_SUFFIX!r}, which is reserved")


def check_shard(shard: ShardId) -> None:
    """Refuse a shard that a user may not create."""
    check_topic(shard.topic)
    if not 0 <= shard.partition <= PARTITION_MAX:
        raise BadRequestError(f"partition {shard.partition} is not in [0, {PARTITION_MAX}]")
