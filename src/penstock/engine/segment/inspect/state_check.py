"""Checks what RocketMQ's files cannot say: states, control records, checkpoints, page checksums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Final

from penstock.codec.format import CHECKPOINT, Damage
from penstock.codec.select import core
from penstock.engine.segment.control import control_records as control
from penstock.engine.segment.control.control_records import DeleteBefore, DeleteOffsets, Seal
from penstock.engine.segment.index.block_checksums import PAGE_SIZE, BlockChecksums
from penstock.engine.segment.inspect.report import Findings
from penstock.engine.segment.paths import sums_root
from penstock.engine.segment.queue.shard_state import ShardState
from penstock.engine.segment.queue.state_files import SHARD_STATES, bucket_of
from penstock.engine.segment.read.key_reader import Query
from penstock.engine.segment.readonly.readonly_shard import ReadOnlyShard
from penstock.engine.segment.readonly.snapshot import Snapshot
from penstock.engine.segment.recovery.checkpoint import (
    ROCKETMQ_CHECKPOINT_SIZE,
    damaged_slots,
    read_derived,
)
from penstock.engine.segment.recovery.checksummed_file import read_whole, unframe
from penstock.engine.segment.recovery.file_checksums import small_files, sums_of_small_files
from penstock.engine.segment.rocketmq.config_files import read_topics
from penstock.engine.segment.rocketmq.fastjson import parse_json
from penstock.errors import CorruptionError, RequestError, StoreError
from penstock.record import ShardId

_RECORDS_PER_STEP: Final = 1_024
_SIZE_PER_STEP: Final = 4 << 20


class StateCheck:
    def __init__(self, snapshot: Snapshot, findings: Findings) -> None:
        self._snapshot: Final = snapshot
        self._findings: Final = findings
        self._closed: Final = not snapshot.unclosed
        # Read before the log is: a writer moves it on while the log is being checked.
        self._rocketmq: Final = read_whole(snapshot.disk, snapshot.paths.checkpoint)

    def run(self, log_end: int, newest_ms: int | None) -> None:
        """Check everything; the log was found to end at `log_end`, with a record of `newest_ms`,
        None: with damage."""
        self._check_rocketmq_checkpoint(log_end, newest_ms)
        self._check_small_files()
        self._check_config()
        self._check_topics()
        if not self._snapshot.is_own:
            return
        self._check_points(log_end)
        self._check_states()
        self._check_sums()

    # States

    def _check_states(self) -> None:
        known = self._snapshot.known
        assert known is not None
        for path, error in damaged_files(self._snapshot):
            self._findings.add_error(path, error)
        for path in self._expected_files():
            if not self._snapshot.disk.exists(path):
                self._findings.add(path, 0, "this file of shard states is missing")
        for shard, state in known.states.items():
            self._findings.checked.states += 1
            if state.dropped or control.is_control(shard):
                continue
            companion = self._snapshot.shards.get(control.control_shard(shard))
            if companion is not None:
                self._check_commands(shard, state, companion)

    def _expected_files(self) -> Iterator[str]:
        """Yield the files of states that the checkpoint names, both copies."""
        point, paths = self._snapshot.point, self._snapshot.paths
        for bucket in () if point is None else point.buckets:
            yield f"{paths.shards}/{bucket:02d}"
            yield f"{paths.copies}/{bucket:02d}"

    def _check_commands(self, shard: ShardId, state: ShardState, companion: ReadOnlyShard) -> None:
        """Every command that is committed must be in the state: no deleted record may come back."""
        path = f"{self._snapshot.paths.shards}/{bucket_of(shard):02d}"
        offset = companion.earliest
        try:
            while offset < companion.commit:
                query = Query(offset, companion.commit, _RECORDS_PER_STEP, _SIZE_PER_STEP)
                page = self._snapshot.reader.read(companion, query)
                for record in page.records:
                    self._findings.checked.control_records += 1
                    if self._may_lack(state, companion.position_of(record.offset) or 0):
                        continue
                    if not _is_folded(state, control.decode(record), record.offset):
                        reason = (
                            f"the command at offset {record.offset} of {companion.shard.name} "
                            f"is not in the state of {shard.name}"
                        )
                        self._findings.add(path, 0, reason, shard)
                if page.next_offset <= offset:
                    break
                offset = page.next_offset
        except RequestError as error:
            self._findings.add_note(f"{companion.shard.name}: {error}")
        except CorruptionError as error:
            self._findings.add_error(companion.units.directory, error)

    def _may_lack(self, state: ShardState, position: int) -> bool:
        """Say whether a state need not know what the log says at a position. Files of states are
        written one after the other: a writer may be, or have been killed, between the one of a
        shard and the one of its commands; a start folds them after the checkpoint."""
        point = self._snapshot.point
        saved = 0 if point is None else point.position
        return not self._closed and position >= max(saved, state.folded_until)

    def _check_topics(self) -> None:
        """RocketMQ learns from topics.json which topics have batch queues."""
        path = self._snapshot.paths.topics
        data = read_whole(self._snapshot.disk, path)
        if data is None:
            return
        try:
            topics = read_topics(data, path).configs
        except CorruptionError as error:
            self._findings.add_error(path, error)
            return
        for shard, log in self._snapshot.shards.items():
            config = topics.get(shard.topic)
            if config is not None and config.kind is not log.kind:
                reason = f"topic {shard.topic!r} has {log.kind.value}, the file says otherwise"
                self._findings.add(path, 0, reason)

    # Checkpoints

    def _check_points(self, log_end: int) -> None:
        paths, disk = self._snapshot.paths, self._snapshot.disk
        point = self._snapshot.point
        if point is None:
            # A new store that was killed may have got none yet.
            if disk.exists(paths.derived) and read_derived(disk, paths.derived) is None:
                self._findings.add(paths.derived, 0, "the checkpoint is damaged")
            elif self._closed:
                self._findings.add(paths.derived, 0, "the checkpoint is missing")
        elif point.position > log_end:
            reason = f"the checkpoint is at {point.position}, the log ends at {log_end}"
            self._findings.add(paths.derived, 0, reason)
        elif self._closed and point.position < log_end:
            reason = f"the store was closed at {point.position}, but the log ends at {log_end}"
            self._findings.add(paths.derived, 0, reason)
        for position in damaged_slots(disk, paths.durable):
            reason = "a durable point does not match its checksum"
            self._findings.add(paths.durable, position, reason)
        if self._snapshot.durable > log_end:
            reason = f"the log was synced up to {self._snapshot.durable}, but ends at {log_end}"
            self._findings.add(paths.durable, 0, reason)

    def _check_rocketmq_checkpoint(self, log_end: int, newest_ms: int | None) -> None:
        path, data = self._snapshot.paths.checkpoint, self._rocketmq
        if data is None:
            if self._snapshot.is_own and self._closed:
                self._findings.add(path, 0, "the checkpoint for RocketMQ is missing")
            return
        if len(data) != ROCKETMQ_CHECKPOINT_SIZE:
            reason = f"the file has {len(data)} bytes, expected {ROCKETMQ_CHECKPOINT_SIZE}"
            self._findings.add(path, min(len(data), ROCKETMQ_CHECKPOINT_SIZE), reason)
            return
        fields = CHECKPOINT.unpack_from(data)
        for name, value in zip(_POSITIONS, fields[3:], strict=True):
            if not 0 <= value <= log_end:
                reason = f"{name} is {value}, the log ends at {log_end}"
                self._findings.add(path, CHECKPOINT.position_of(name), reason)
        oldest_ms = self._oldest_ms() if self._closed else None
        for name, value in zip(_TIMES, fields[:3], strict=True):
            if oldest_ms is None or newest_ms is None or not value:
                continue
            if not oldest_ms <= value <= newest_ms:
                reason = f"{name} is {value}, records were stored from {oldest_ms} to {newest_ms}"
                self._findings.add(path, CHECKPOINT.position_of(name), reason)
        rest = data[CHECKPOINT.size :]
        if rest.strip(b"\0"):
            position = len(data) - len(rest.lstrip(b"\0"))
            self._findings.add(path, position, "bytes after the numbers are not zero")

    def _oldest_ms(self) -> int | None:
        """Return when the first record of the log was stored; None when that is unknown."""
        files = self._snapshot.files
        if files.start not in files.bases:
            return None
        raw = core.decode_raw(
            files.buffer(files.start), files.start, files.start, True, files.strict
        )
        return None if isinstance(raw, Damage) else raw.store_timestamp_ms

    def _check_config(self) -> None:
        """What cannot be read as JSON is damaged, whatever program wrote it."""
        disk, root = self._snapshot.disk, self._snapshot.paths.root
        for name in small_files(disk, self._snapshot.paths):
            data = read_whole(disk, f"{root}/{name}") if name.endswith(".json") else None
            if data is not None:
                try:
                    parse_json(data, f"{root}/{name}")
                except CorruptionError as error:
                    self._findings.add_error(f"{root}/{name}", error)

    def _check_small_files(self) -> None:
        """Compare files that have no checksum of their own with what they were when the store was
        closed."""
        disk, paths, point = self._snapshot.disk, self._snapshot.paths, self._snapshot.point
        known = None if point is None else point.small_files
        if known is None or not self._closed:
            why = "RocketMQ" if point is None else "a store that was not closed"
            names = ", ".join(small_files(disk, paths))
            self._findings.add_note(f"{names}: values that are possible; {why} keeps no checksums")
            return
        checksums = sums_of_small_files(disk, paths)
        for name, checksum in known.items():
            if checksums.get(name) != checksum:
                reason = (
                    "this file is not what it was when the store was closed: it is damaged, or "
                    "RocketMQ or a person has changed it"
                )
                self._findings.add(f"{paths.root}/{name}", 0, reason)

    # Page checksums

    def _check_sealed(self) -> None:
        """Every file of a queue but the newest is sealed once the store is closed."""
        for log in self._snapshot.shards.values():
            names = set(self._snapshot.disk.list(self._checksums_directory(log)))
            for first in log.units.first_units():
                path = log.units.path_of(first)
                if first < log.state.queue_first and path.rpartition("/")[2] not in names:
                    self._findings.add(path, 0, "this queue file has no checksums")

    def _checksums_directory(self, log: ReadOnlyShard) -> str:
        root = f"{self._snapshot.paths.sums}/{sums_root(log.kind)}"
        return f"{root}/{log.shard.topic}/{log.shard.partition}"

    def _check_sums(self) -> None:
        if self._closed:
            self._check_sealed()
        sums = BlockChecksums(self._snapshot.disk, self._snapshot.paths.sums)
        sealed = list(self._sealed_files(self._snapshot.paths.sums, ""))
        for number, relative_path in enumerate(sealed):
            self._findings.progress("page checksums", number, len(sealed))
            try:
                self._check_pages(sums, relative_path)
            except StoreError as error:
                self._findings.add_error(sums.path_of(relative_path), error)

    def _check_pages(self, sums: BlockChecksums, relative_path: str) -> None:
        checksums = sums.load(relative_path)
        path = self._path_of(relative_path)
        if checksums is None or path is None:
            return
        try:
            file = self._snapshot.disk.open(path, writable=False)
        except FileNotFoundError:
            if self._is_needed(relative_path):
                self._findings.add(path, 0, "this sealed file is missing")
            return
        with closing(file):
            for page in checksums.damaged_pages(file):
                reason = "page checksum does not match"
                self._findings.add(path, page * PAGE_SIZE, reason)
        self._findings.checked.pages += checksums.page_count

    def _is_needed(self, relative_path: str) -> bool:
        """Say whether a file should be there that has checksums. A writer that was killed while it
        removed an old one, or one after a cut, may have left those."""
        root, _, rest = relative_path.partition("/")
        if root == "index":
            point, start = self._snapshot.point, self._snapshot.files.start
            older = {} if point is None else dict(point.index.older)
            return point is None or rest == point.index.name or older.get(rest, -1) >= start
        topic, _, rest = rest.partition("/")
        partition, _, name = rest.partition("/")
        log = self._snapshot.shards.get(ShardId(topic, int(partition)))
        if log is None:
            return False
        first = int(name) // log.units.unit_size
        try:
            live = log.unit_of(log.earliest)
            return first + log.units.file_units > live and first < log.ends.stop
        except CorruptionError:
            return True

    def _sealed_files(self, directory: str, relative: str) -> Iterator[str]:
        for name in self._snapshot.disk.list(directory):
            path = f"{directory}/{name}"
            if self._snapshot.disk.is_directory(path):
                yield from self._sealed_files(path, f"{relative}{name}/")
            elif not name.endswith(".tmp"):
                yield f"{relative}{name}"

    def _path_of(self, relative_path: str) -> str | None:
        root, _, rest = relative_path.partition("/")
        paths = self._snapshot.paths
        roots = {
            "consumequeue": paths.consume_queue,
            "batchconsumequeue": paths.batch_queue,
            "index": paths.index,
        }
        return f"{roots[root]}/{rest}" if root in roots else None


_TIMES: Final = ("log_timestamp_ms", "queues_timestamp_ms", "index_timestamp_ms")
_POSITIONS: Final = ("flushed_position", "confirmed_position", "queues_position")


def damaged_files(snapshot: Snapshot) -> Iterator[tuple[str, StoreError]]:
    """Yield every file of states that cannot be read, also where another copy can."""
    for directory in (snapshot.paths.shards, snapshot.paths.copies):
        for name in snapshot.disk.list(directory):
            path = f"{directory}/{name}"
            data = read_whole(snapshot.disk, path) if name.isdigit() else None
            if data is not None:
                try:
                    unframe(SHARD_STATES, path, data)
                except StoreError as error:
                    yield path, error


def _is_folded(state: ShardState, command: control.Command, offset: int) -> bool:
    if offset >= state.control_offset:
        return False
    match command:
        case DeleteOffsets():
            return all(_covers(state, start, end) for start, end in command.ranges)
        case DeleteBefore():
            return command.offset <= state.floor_offset
        case Seal():
            return state.sealed


def _covers(state: ShardState, start: int, end: int) -> bool:
    start = max(start, state.floor_offset)
    return start >= end or any(
        first <= start and end <= last for first, last in state.deleted_between(start, end)
    )
