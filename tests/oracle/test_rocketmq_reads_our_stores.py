"""What RocketMQ 5.5 makes of directories that we wrote."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Final

import pytest
from tests.oracle.rocketmq import RocketMQ, is_available

from penstock.codec.format import RawRecord
from penstock.codec.select import core
from penstock.engine.segment.settings import FileSizes, SegmentSettings
from penstock.engine.segment.store import SegmentStore
from penstock.record import QueueKind, Record, ShardId

pytestmark = [
    pytest.mark.rocketmq,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_available(), reason="needs java, javac and mvn"),
]

SIZES: Final = FileSizes(
    commit_log_file_size=1 << 17,
    consume_queue_file_size=2_000,
    batch_queue_file_size=920,
    index_slots=100,
    index_entries_max=400,
)
ORDERS: Final = ShardId("orders", 0)
EVENTS: Final = ShardId("events", 1)
BATCHES: Final = ShardId("batches", 0)
LONG: Final = ShardId("L" * 140, 0)
FOREIGN: Final = ShardId("foreign", 0)
DERIVED: Final = ("consumequeue", "batchconsumequeue", "index")


@pytest.fixture(scope="module")
def rocketmq() -> RocketMQ:
    oracle = RocketMQ()
    oracle.build()
    return oracle


def inner_batch(count: int) -> bytes:
    """Messages in RocketMQ's own wire form."""
    parts = []
    for number in range(count):
        body = b"message %d" % number
        head = struct.pack(">iiiii", 22 + len(body), 0, 0, 0, len(body))
        parts.append(head + body + struct.pack(">h", 0))
    return b"".join(parts)


def foreign_records() -> list[bytes]:
    """Records as other brokers write them: IPv6 hosts, flags, reserved properties."""
    ipv4, ipv6 = bytes(8), bytes(15) + b"\x01" + bytes(4)
    encoded = []
    for number, (born, stored, flag) in enumerate(
        [(ipv6, ipv4, 0), (ipv4, ipv6, 7), (ipv6, ipv6, 1 << 20)]
    ):
        raw = RawRecord(
            topic=FOREIGN.topic,
            queue_id=FOREIGN.partition,
            queue_offset=number,
            position=0,
            size=0,
            version=1,
            flag=flag,
            sys_flag=2,
            born_timestamp_ms=1_700_000_000_000 + number,
            born_host=born,
            store_timestamp_ms=1_800_000_000_000 + number,
            store_host=stored,
            reconsume_times=3,
            prepared_transaction_offset=0,
            body=b"foreign",
            body_crc=0,
            properties=(("UNIQ_KEY", f"U{number}"), ("KEYS", "one two"), ("TAGS", "tag")),
            raw_properties=b"",
        )
        encoded.append(core.encode_raw(raw, True))
    return encoded


def write_every_kind(store: SegmentStore) -> None:
    for shard in (ORDERS, EVENTS, LONG, FOREIGN):
        store.create_shard(shard)
    store.create_shard(BATCHES, QueueKind.BATCH)
    odd = [
        Record(b"first of a group"),
        Record(None, key=b"\xff\x00", tags=("several", "tags")),
        Record(b"", key=b"two words", headers=(("KEYS", b"reserved"), ("n", None))),
    ]
    for number in range(500):
        record = Record(
            b"value %d" % number * (number % 40),
            key=b"key-%d" % (number % 50),
            tags=(f"tag-{number % 3}",),
            headers=(("region", b"eu-%d" % number),),
            timestamp_ms=1_700_000_000_000 + number,
        )
        store.append(ORDERS if number % 2 else EVENTS, record)
        if number % 7 == 0:
            store.append_many(EVENTS, odd)
        if number % 10 == 0:
            store.append(LONG, Record(b"a long topic makes records of version 2", key=b"long"))
            store.append(BATCHES, Record(b"alone in a batch topic"))
            store.append_batch(BATCHES, inner_batch(5), 5)
    for data in foreign_records():
        store.append_encoded(FOREIGN, data)
    store.delete_offsets(ORDERS, [3, 4])


def write_store(path: Path) -> dict[ShardId, int]:
    with SegmentStore.open(str(path), SegmentSettings(sizes=SIZES)) as store:
        write_every_kind(store)
        return {shard: store.bounds(shard).next for shard in store.shards()}


def files_below(root: Path, directory: str) -> dict[str, bytes]:
    found = sorted(path for path in (root / directory).rglob("*") if path.is_file())
    # Index files are named after the moment of their creation: only their order counts.
    return {
        f"{directory}/{number}" if directory == "index" else str(path.relative_to(root)): (
            path.read_bytes()
        )
        for number, path in enumerate(found)
    }


@pytest.mark.parametrize("variant", ["", "variant=crc"])
def test_rocketmq_derives_the_same_files_from_our_log(
    rocketmq: RocketMQ, tmp_path: Path, variant: str
) -> None:
    write_store(tmp_path / "ours")
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    for directory in DERIVED:
        shutil.rmtree(tmp_path / "theirs" / directory)
    (tmp_path / "theirs" / "checkpoint").unlink()
    rocketmq.verify(tmp_path / "theirs", *filter(None, [variant]))
    for directory in DERIVED:
        ours = files_below(tmp_path / "ours", directory)
        assert len(ours) > 2
        assert files_below(tmp_path / "theirs", directory) == ours


def test_rocketmq_serves_every_record_and_key_from_our_files(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    ends = write_store(tmp_path / "store")
    found = rocketmq.verify(tmp_path / "store", "variant=crc")
    queues = {
        ShardId(str(line["topic"]), int(str(line["queueId"]))): line
        for line in found
        if line["type"] == "queue"
    }
    for shard, end in ends.items():
        assert queues[shard]["maxOffset"] == end, shard
        assert queues[shard]["stoppedBy"] == "", shard
    keys = {(line["topic"], line["key"]) for line in found if line["type"] == "key"}
    assert {("orders", "key-1"), ("foreign", "two"), ("foreign", "U2")} <= keys
    assert not [line for line in found if line["type"] == "bad"]


def test_rocketmq_opens_a_store_that_was_killed(rocketmq: RocketMQ, tmp_path: Path) -> None:
    settings = SegmentSettings(sizes=SIZES, background=False)
    with SegmentStore.open(str(tmp_path / "store"), settings) as store:
        write_every_kind(store)
        end = store.bounds(ORDERS).next
        shutil.copytree(tmp_path / "store", tmp_path / "killed")
    assert (tmp_path / "killed" / "abort").exists()
    found = rocketmq.verify(tmp_path / "killed")
    (orders,) = (line for line in found if line["type"] == "queue" and line["topic"] == "orders")
    assert orders["maxOffset"] == end


def test_rocketmq_opens_a_store_whose_shard_was_truncated(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    with SegmentStore.open(str(tmp_path / "store"), SegmentSettings(sizes=SIZES)) as store:
        write_every_kind(store)
        store.truncate(ORDERS, 100)
        for _ in range(20):
            store.append(ORDERS, Record(b"after the cut"))
    found = rocketmq.verify(tmp_path / "store")
    (orders,) = (line for line in found if line["type"] == "queue" and line["topic"] == "orders")
    assert (orders["maxOffset"], orders["getMessage"]) == (120, 120)


def test_rocketmq_passes_over_the_marks_of_who_owns_a_directory(
    rocketmq: RocketMQ, tmp_path: Path
) -> None:
    settings = SegmentSettings(
        sizes=SIZES,
        commit_log_path=str(tmp_path / "log"),
        consume_queue_path=str(tmp_path / "queues"),
    )
    with SegmentStore.open(str(tmp_path / "store"), settings) as store:
        write_every_kind(store)
        end = store.bounds(ORDERS).next
    for ours, theirs in (("log", "commitlog"), ("queues", "consumequeue")):
        (tmp_path / ours).rename(tmp_path / "store" / theirs)
        assert (tmp_path / "store" / theirs / ".penstock" / "owner").exists()
    found = rocketmq.verify(tmp_path / "store")
    (orders,) = (line for line in found if line["type"] == "queue" and line["topic"] == "orders")
    assert (orders["maxOffset"], orders["stoppedBy"]) == (end, "")
