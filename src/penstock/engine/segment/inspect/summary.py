"""What a store consists of: its files, its shards and their bounds, how far it is on the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import groupby
from typing import Final

from msgspec import Struct

from penstock.codec.format import CHECKPOINT
from penstock.engine.segment.control.control_records import is_control
from penstock.engine.segment.readonly.readonly_shard import ReadOnlyShard
from penstock.engine.segment.readonly.readonly_store import ReadOnlyStore
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.engine.segment.recovery.checkpoint import read_durable
from penstock.engine.segment.recovery.checksummed_file import read_whole
from penstock.engine.segment.recovery.directory_owners import MARK
from penstock.engine.segment.settings import FileSizes
from penstock.errors import CorruptionError
from penstock.platform.disk import Disk
from penstock.record import QueueKind

_PARTS: Final = (
    ("commit log", "commit_log"),
    ("queues", "consume_queue"),
    ("batch queues", "batch_queue"),
    ("key index", "index"),
    ("penstock", "own"),
)


class FileInfo(Struct, frozen=True):
    """One file of a store."""

    part: str
    path: str
    size: int
    """Bytes as the file says; queue files are sparse and may take less on the device."""
    modified_ms: int


class PartInfo(Struct, frozen=True):
    """The files of one part of a store."""

    part: str
    files: int
    size: int


class ShardInfo(Struct, frozen=True):
    """One shard and its bounds. Without bounds its queue cannot be read: `damage` says why."""

    shard: str
    topic: str
    partition: int
    kind: str
    earliest: int = 0
    commit: int = 0
    next: int = 0
    deleted: int = 0
    """Records of [earliest, commit) that were deleted one by one."""
    sealed: bool = False
    epoch: int = 0
    damage: str | None = None

    @property
    def records(self) -> int:
        """How many records can be read, at most: expired ones are counted."""
        return self.commit - self.earliest - self.deleted


class TopicInfo(Struct, frozen=True):
    """A topic, as the sum of its shards."""

    topic: str
    kind: str
    shards: int
    records: int


class CheckpointInfo(Struct, frozen=True):
    """How far a start after a crash may rely on what is on the device."""

    durable_position: int
    """The log is on the device up to here."""
    derived_position: int | None
    """Queues, index and states, too, are on the device up to here; None without a checkpoint."""
    rocketmq: dict[str, int] | None
    """What RocketMQ's own checkpoint says."""


class StoreInfo(Struct, frozen=True):
    path: str
    written_by: str
    """penstock, or rocketmq for a directory that only RocketMQ has written."""
    closed: bool
    """False while a writer has the store open, and after it was killed."""
    writer_pid: int | None
    start_position: int
    end_position: int
    sizes: FileSizes
    checkpoint: CheckpointInfo
    parts: list[PartInfo]
    shards: list[ShardInfo]
    damaged: list[str]
    """Files of states that cannot be read: shards may be missing from the list."""


def info(store: ReadOnlyStore) -> StoreInfo:
    """Return everything that can be said about a store without reading its records."""
    snapshot = store.snapshot()
    shards = list(shard_infos(store))
    known = [snapshot.shards[shard] for shard in snapshot.shards]
    return StoreInfo(
        path=snapshot.paths.root,
        written_by="penstock" if snapshot.is_own else "rocketmq",
        closed=not snapshot.unclosed,
        writer_pid=_writer_pid(snapshot),
        start_position=snapshot.files.start,
        end_position=max((_end(snapshot, log) for log in known), default=snapshot.durable),
        sizes=snapshot.sizes,
        checkpoint=_checkpoint(snapshot),
        parts=list(part_infos(store)),
        shards=shards,
        damaged=[] if snapshot.known is None else sorted(snapshot.known.damaged.values()),
    )


def shard_infos(store: ReadOnlyStore) -> Iterator[ShardInfo]:
    """Yield every shard of the user, sorted, also those that are damaged."""
    snapshot = store.snapshot()
    for shard in sorted(snapshot.shards):
        if not is_control(shard):
            yield _shard_info(snapshot.shards[shard])


def topic_infos(store: ReadOnlyStore) -> Iterator[TopicInfo]:
    """Yield every topic of the user, sorted."""
    for topic, group in groupby(shard_infos(store), lambda shard_info: shard_info.topic):
        shards = list(group)
        records = sum(shard_info.records for shard_info in shards)
        yield TopicInfo(topic, shards[0].kind, len(shards), records)


def _shard_info(log: ReadOnlyShard) -> ShardInfo:
    shard = log.shard
    name, kind = shard.name, _KINDS[log.kind]
    try:
        state = log.state
    except CorruptionError as error:
        return ShardInfo(name, *shard, kind, damage=f"{error.path}: {error.reason}")
    start, end = log.earliest, log.commit
    deleted = sum(
        min(last, end) - max(first, start) for first, last in state.deleted_between(start, end)
    )
    return ShardInfo(
        shard=name,
        topic=shard.topic,
        partition=shard.partition,
        kind=kind,
        earliest=start,
        commit=end,
        next=state.latest_offset,
        deleted=deleted,
        sealed=state.sealed,
        epoch=max(0, state.epochs.latest),
    )


def part_infos(store: ReadOnlyStore) -> Iterator[PartInfo]:
    file_infos = list(files(store))
    for part, _ in _PARTS:
        sizes = [file_info.size for file_info in file_infos if file_info.part == part]
        yield PartInfo(part, len(sizes), sum(sizes))


def files(store: ReadOnlyStore) -> Iterator[FileInfo]:
    """Yield the files of a store, part by part, sorted by path."""
    snapshot = store.snapshot()
    for part, name in _PARTS:
        yield from _files_below(snapshot.disk, part, str(getattr(snapshot.paths, name)))


def _files_below(disk: Disk, part: str, directory: str) -> Iterator[FileInfo]:
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if name == MARK:
            continue
        if disk.is_directory(path):
            yield from _files_below(disk, part, path)
            continue
        # A writer may remove it meanwhile.
        with suppress(FileNotFoundError), closing(disk.open(path, writable=False)) as file:
            yield FileInfo(part, path, file.size(), disk.modified_ms(path))


def _checkpoint(snapshot: Snapshot) -> CheckpointInfo:
    disk, paths = snapshot.disk, snapshot.paths
    data = read_whole(disk, paths.checkpoint)
    rocketmq = None
    if data is not None and len(data) >= CHECKPOINT.size:
        names = [field.name for field in CHECKPOINT.fields]
        rocketmq = dict(zip(names, CHECKPOINT.unpack_from(data), strict=True))
    return CheckpointInfo(
        durable_position=read_durable(disk, paths.durable)[1] or snapshot.durable,
        derived_position=None if snapshot.point is None else snapshot.point.position,
        rocketmq=rocketmq,
    )


def _writer_pid(snapshot: Snapshot) -> int | None:
    text = (read_whole(snapshot.disk, snapshot.paths.abort) or b"").strip()
    return int(text) if text.isdigit() else None


def _end(snapshot: Snapshot, log: ReadOnlyShard) -> int:
    try:
        return snapshot.end_for(log)
    except CorruptionError:
        return snapshot.durable


_KINDS: Final = {QueueKind.SIMPLE: "simple", QueueKind.BATCH: "batch"}
