"""A process that kills others of itself:
`python -m tests.tiered.upload.writer_to_kill DIRECTORY STRIDE FIRST [PORT BUCKETS]`.

It stays single-threaded and forks a child for every step of a history of writes, uploads, local
deletes, compaction and garbage collection; the child sends itself SIGKILL right before that step.
A step is a call that changes a directory: write, fsync, link, rename, unlink of the tier, and
replace, remove of the log; with an S3 server at PORT whose buckets are the directories in BUCKETS,
a put or a delete of an object. Another child then looks whether anything is lost, there twice,
damaged or left over. The last line printed is the number of children that were killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.tiered.providers.s3_server import S3Server

from penstock.engine.contract import Cleanup, ShardConfig, ShardTiering
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.platform.local_disk import LocalDisk
from penstock.platform.local_file import LocalFile
from penstock.record import Offset, Record, ShardId, StoredRecord
from penstock.tiered.admin import collect_garbage, verify_tier
from penstock.tiered.build import build_tiered_engine
from penstock.tiered.config import TierConfig
from penstock.tiered.engine import TieredSegmentEngine
from penstock.tiered.maintenance.upkeep import TierLimits
from penstock.tiered.providers import posix
from penstock.tiered.providers.object_store import ObjectStoreProvider

SHARD: Final = ShardId("orders", 0)
ROUNDS: Final = 3
PER_ROUND: Final = 25
_WITH_SERVER: Final = 5
_SIZES: Final = FileSizes(
    commit_log_file_size=8192,
    consume_queue_file_size=2000,
    batch_queue_file_size=4600,
    index_slots=50,
    index_entries_max=500,
)


class Bomb:
    """Ends the process before the n-th step."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1


class CountedFile(LocalFile):
    bomb: Bomb

    def write_at(self, position: int, data: bytes | memoryview) -> None:
        self.bomb.step()
        super().write_at(position, data)

    def sync(self) -> None:
        self.bomb.step()
        super().sync()


class TierDisk(LocalDisk):
    """The disk of the tier, with a step before every call that changes something."""

    def __init__(self, bomb: Bomb) -> None:
        self._bomb = bomb

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> LocalFile:
        if create:
            self._bomb.step()
        file = super().open(path, create=create, writable=writable)
        descriptor = file.descriptor()
        assert descriptor is not None
        counted = CountedFile(path, descriptor)
        counted.bomb = self._bomb
        return counted

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        self._bomb.step()
        super().make_directory(path, durable=durable)

    def link(self, source: str, target: str) -> None:
        self._bomb.step()
        super().link(source, target)

    def rename(self, source: str, target: str) -> None:
        self._bomb.step()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._bomb.step()
        super().remove(path)

    def remove_empty(self, path: str) -> bool:
        self._bomb.step()
        return super().remove_empty(path)

    def sync_directory(self, path: str) -> None:
        self._bomb.step()
        super().sync_directory(path)


class CountedDisk(LocalDisk):
    def __init__(self, bomb: Bomb) -> None:
        super().__init__()
        self._bomb = bomb

    def remove(self, path: str) -> None:
        self._bomb.step()
        super().remove(path)

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._bomb.step()
        super().replace(path, data, durable=durable)

    def replace_together(self, files: Sequence[tuple[str, bytes]]) -> None:
        # One by one: a process that dies between two of them leaves what the real one would.
        for path, data in files:
            self.replace(path, data)


def count_requests(bomb: Bomb) -> None:
    """Let every request that changes a bucket be a step."""
    for name in ("put_if_absent", "compare_and_set", "delete"):
        method = getattr(ObjectStoreProvider, name)

        def counted(*arguments: object, name: str = name, method: object = method) -> object:
            bomb.step()
            assert callable(method), name
            return method(*arguments)

        setattr(ObjectStoreProvider, name, counted)


def record(n: int) -> Record:
    return Record(b"value %d " % n * 9, key=b"key %d" % (n % 40), timestamp_ms=1_000_000 + n)


def open_engine(directory: str, disk: LocalDisk) -> TieredSegmentEngine:
    settings = SegmentSettings(sizes=_SIZES, background=False, file_reserved_time_h=0)
    store = SegmentStore.open(f"{directory}/segment", settings, disk=disk)
    return build_tiered_engine(
        store,
        tier_of(directory),
        metadata_path=f"{directory}/tier-meta",
        limits=TierLimits(scrub_size=0),
        background=False,
    )


def tier_of(directory: str, grace_ms: int = 3_600_000) -> TierConfig:
    url, options = f"file://{directory}/tier", {}
    if len(sys.argv) > _WITH_SERVER:
        port, buckets = int(sys.argv[4]), Path(sys.argv[5])
        server = S3Server(port, buckets)
        bucket = f"step-{os.path.basename(directory)}"
        server.create_bucket(bucket)
        url, options = f"s3://{bucket}/tier", server.options()
    return TierConfig(
        url=url, options=options, chunk_size=2500, segment_size=6000, grace_ms=grace_ms
    )


def history(engine: TieredSegmentEngine, acknowledged: int) -> None:
    """Write until everything is there, in rounds; tell of each record that was acknowledged."""
    tiering = ShardTiering(local_retention_bytes=2000)
    engine.create_shard(SHARD, ShardConfig(cleanup=Cleanup.COMPACT, tiering=tiering))
    for _ in range(ROUNDS):
        begin = int(engine.shard_info(SHARD).commit)
        for n in range(begin, min(begin + PER_ROUND, ROUNDS * PER_ROUND)):
            engine.write(SHARD, record(n))
            os.write(acknowledged, b"%d\n" % n)
        engine.upload_now()
        engine.store.retention.run()
        engine.compact(SHARD)
        engine.upload_now()


def work(directory: str, at: int) -> None:
    bomb = Bomb(at)
    vars(posix)["LocalDisk"] = lambda: TierDisk(bomb)
    count_requests(bomb)
    descriptor = os.open(f"{directory}/acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    engine = open_engine(directory, CountedDisk(bomb))
    history(engine, descriptor)
    engine.close()


def check(directory: str) -> None:
    """Look at what a killed writer left; then end its work, and look again."""
    with open(f"{directory}/acknowledged", encoding="ascii") as file:
        lines = file.read().split()
    engine = open_engine(directory, LocalDisk())
    if SHARD in engine.list_shard():
        look(engine, len(lines))
    descriptor = os.open(f"{directory}/acknowledged", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    history(engine, descriptor)
    look(engine, ROUNDS * PER_ROUND)
    newest = read_all(engine)
    assert {one.key for one in newest} == {record(n).key for n in range(ROUNDS * PER_ROUND)}
    engine.close()
    report = verify_tier(tier_of(directory))
    assert report.damage == [], report.damage
    left = tier_of(directory, grace_ms=0)
    collected = open_engine(directory, LocalDisk())
    flat = collected.tiers.flat(SHARD)
    assert flat is not None
    manifest = flat.refresh()
    assert manifest is not None
    named = {chunk.name for chunk in flat.manifest.chunks_from(-1)}
    named |= {one.name for one in manifest.segments} | {"manifest"}
    collected.close()
    if len(sys.argv) > _WITH_SERVER:
        time.sleep(1.1)  # the server's clock has seconds only
    collect_garbage(left)
    listed = {info.key.rpartition("/")[2] for info in left.open().list()}
    assert listed == named, listed ^ named


def read_all(engine: TieredSegmentEngine) -> list[StoredRecord]:
    found: list[StoredRecord] = []
    offset = int(engine.shard_info(SHARD).earliest)
    while page := engine.read_by_offset(SHARD, Offset(offset), max_records=17):
        found += page
        offset = page[-1].offset + 1
    return found


def look(engine: TieredSegmentEngine, acknowledged: int) -> None:
    """Every record is the one that was written, none is there twice, and the newest of each key
    that was acknowledged is there."""
    assert int(engine.shard_info(SHARD).commit) >= acknowledged
    found = read_all(engine)
    offsets = [one.offset for one in found]
    assert offsets == sorted(set(offsets)), offsets
    for one in found:
        written = record(one.offset)
        assert (one.value, one.key) == (written.value, written.key), one.offset
    newest = {record(n).key: n for n in range(int(engine.shard_info(SHARD).commit))}
    missing = set(newest.values()) - set(offsets)
    assert not missing, sorted(missing)


def forked(function: Callable[[], None]) -> int:
    """Run a function in a child; return how that ended."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        except Exception:  # noqa: BLE001 - it is told, and the parent sees the code
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def main() -> None:
    root, stride = sys.argv[1], int(sys.argv[2])
    at = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    killed = 0
    while True:
        directory = f"{root}/{at}"
        os.makedirs(directory)
        open(f"{directory}/acknowledged", "w", encoding="ascii").close()
        status = forked(partial(work, directory, at))
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not was_killed and status != 0:
            sys.exit(f"the writer of step {at} failed: {status}")
        killed += was_killed
        if forked(partial(check, directory)) != 0:
            sys.exit(f"after a kill before step {at}")
        shutil.rmtree(directory)
        if not was_killed:
            break
        at += stride
    sys.stdout.write(f"{killed}\n")


if __name__ == "__main__":
    main()
