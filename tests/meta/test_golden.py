"""Bytes that a released version wrote must stay readable for ever.

None of these is ever regenerated: `v1.txt`, `v2.txt` (topics with a size and age of their
segments), `v3.txt` (with rules for compaction, and a header that gives tags), `v4.txt` (with when
and in which pieces a topic goes to its tier), `v5.txt` (with settings of Kafka's own), `v6.txt`
(shards with several replicas, and what changes them). A new field is appended with a default, and
the bytes below still decode to the same values.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.msgpack import Decoder, Encoder
from msgspec.structs import replace

from penstock.meta.events import Event, ShardPut, TopicPut
from penstock.meta.state import answers
from penstock.meta.state.metadata import machine as metadata
from penstock.meta.state.metadata.commands import (
    Applied,
    CancelReassignment,
    ChangeInSyncSets,
    Command,
    CreateTopic,
    Election,
    ElectLeaders,
    ElectUnclean,
    InSyncChange,
    LeaveInSync,
    Placement,
    ReassignReplicas,
    RegisterNode,
    ReplicaOutcome,
    ReplicaOutcomes,
    ReportUnproven,
    Request,
)
from penstock.meta.state.metadata.rows import NODES, encode_events, encode_shard
from penstock.meta.state.model import (
    Lease,
    Node,
    Segment,
    Shard,
    TieringPolicy,
    Topic,
    TopicConfig,
)
from penstock.meta.state.offsets import machine as offset
from penstock.meta.state.offsets import rows as offset_rows
from penstock.meta.state.offsets.commands import (
    GroupOffsets,
    OffsetEntry,
    OffsetRequest,
    SaveOffsets,
)
from penstock.meta.storage import log_format as fmt
from penstock.platform.rocksdb.durable_point import DURABLE_POINT

HERE = Path(__file__).parent
DESIGN = HERE.parents[1] / "docs" / "designs" / "2026-11-15-solo-log.md"

CONFIG = TopicConfig(cleanup="compact", retention_ms=60_000, tiering=TieringPolicy())
TOPIC = Topic(
    topic_id="orders-01",
    namespace="default",
    name="orders/€",
    partitions=2,
    config=CONFIG,
    status="active",
    created_at_ms=1_700_000_000_000,
    revision=7,
)
SHARD = Shard(
    topic_id="orders-01",
    partition=1,
    replicas=(1, 2),
    in_sync=(1,),
    leader=1,
    leader_epoch=3,
    active_segment=2,
    first_segment=1,
    status="active",
    revision=9,
)
REPLICATED = replace(
    SHARD,
    replicas=(1, 2, 3),
    eligible=(3,),
    partition_epoch=12,
    last_leader=1,
    adding=(2,),
    removing=(3,),
)
THROTTLED = replace(REPLICATED, throttle=1_000_000)
REPLICA_COMMANDS: tuple[Command, ...] = (
    ChangeInSyncSets(1, 5, (InSyncChange("orders-01", 1, 3, 12, ((1, 5), (2, 6))),)),
    LeaveInSync(2, 6, "orders-01", 1, 12),
    ElectLeaders((Election("orders-01", 1, 12, 2), Election("orders-01", 0, 3))),
    ElectUnclean("orders-01", 1, 3, 12),
    ReassignReplicas("orders-01", 1, 12, (2, 3)),
    CancelReassignment("orders-01", 1),
    ReportUnproven(3, 7, is_synced_lost=True),
    RegisterNode(1, "h:1", {}, ("meta",), "b", "s", is_proven=True, previous_epoch=4),
)
OUTCOMES = ReplicaOutcomes(
    (
        ReplicaOutcome(is_accepted=True, partition_epoch=13),
        ReplicaOutcome(is_accepted=False, partition_epoch=12, reason="no", is_last=True),
    )
)
SEGMENT = Segment(
    topic_id="orders-01",
    partition=1,
    number=2,
    start_offset=100,
    end_offset=None,
    status="write",
    leader=1,
    leader_epoch=3,
    created_at_ms=5,
)
NODE = Node(
    node_id=1,
    address="h:1",
    listeners={"kafka": "h:2"},
    roles=("meta",),
    boot_id="b",
    epoch=4,
    status="online",
    registered_at_ms=6,
)
LEASE = Lease(topic_id="orders-01", partition=1, holder="spark", epoch=8, until_ms=9)
REQUEST = Request(
    12, CreateTopic("orders-01", "default", "o", 1, CONFIG, (Placement(0, (1,), 1),)), "q"
)
EVENTS: tuple[Event, ...] = (TopicPut(TOPIC),)
SAVE = OffsetRequest(
    13, SaveOffsets((GroupOffsets("default", "g", (OffsetEntry("orders-01_1", 5, 2, 3, 4),)),))
)
COMMITTED = offset_rows.CommittedOffset(
    offset=5, metadata="né", leader_epoch=-1, commit_timestamp_ms=4, epoch=2, sequence=3
)
ENTRY = fmt.Entry(index=17, term=1, data=b"data")
IDENTITY = fmt.Identity(version=1, cluster_id="C", node_id=1, offset_groups=1)

encode = Encoder().encode


def written() -> dict[str, bytes]:
    return {
        "topic": encode(TOPIC),
        "shard": encode_shard(SHARD),
        "segment": encode(SEGMENT),
        "node": NODES.encode(NODE),
        "lease": encode(LEASE),
        "events": encode(EVENTS),
        "request": metadata.encode_request(REQUEST),
        "save": offset.encode_request(SAVE),
        "offset-row": offset_rows.pack_offset(COMMITTED),
        "entry-key": fmt.entry_key(0, 17),
        "entry": fmt.encode_entry(ENTRY),
        "hard-state": fmt.HARD_STATE.pack(1, 1, 17),
        "applied-key": fmt.applied_key(3),
        "applied": fmt.APPLIED.pack(17, 1, 1),
        "state-prefix": fmt.state_prefix(3, 1),
        "configuration": fmt.encode_configuration(fmt.Configuration(voters=(1,))),
        "identity": fmt.encode_identity(IDENTITY),
        "offset-key": offset_rows.offset_key(offset_rows.group_prefix("n", "g\0"), "s_0"),
    }


def written_of_replicas() -> dict[str, bytes]:
    return {
        "shard": encode_shard(REPLICATED),
        "events": encode_events((ShardPut(SHARD), ShardPut(REPLICATED))),
        **{
            str(command.__struct_config__.tag): metadata.encode_request(Request(12, command))
            for command in REPLICA_COMMANDS
        },
        "answer": encode(Applied(7, OUTCOMES)),
    }


def golden(version: str) -> dict[str, bytes]:
    lines = (HERE / "golden" / f"{version}.txt").read_text().splitlines()
    return {name: bytes.fromhex(data) for name, data in (line.split() for line in lines)}


def test_version_5_is_written_byte_for_byte() -> None:
    assert written() == golden("v5")


def test_version_6_is_written_byte_for_byte_but_for_what_version_7_changed() -> None:
    assert {**golden("v6"), **golden("v7")} == {
        **written_of_replicas(),
        "throttled-shard": encode_shard(THROTTLED),
    }


def test_version_7_is_read() -> None:
    held = golden("v7")
    assert Decoder(Shard).decode(held["throttled-shard"]) == THROTTLED
    request = metadata.decode_request(held["reassign-replicas"])
    assert request == Request(12, ReassignReplicas("orders-01", 1, 12, (2, 3)))


def test_version_6_is_read() -> None:
    held = golden("v6")
    assert Decoder(Shard).decode(held["shard"]) == REPLICATED
    assert Decoder(tuple[Event, ...]).decode(held["events"]) == (
        ShardPut(SHARD),
        ShardPut(REPLICATED),
    )
    for command in REPLICA_COMMANDS:
        request = metadata.decode_request(held[str(command.__struct_config__.tag)])
        assert request == Request(12, command)
    assert Decoder(Applied).decode(held["answer"]) == Applied(7, OUTCOMES)


@pytest.mark.parametrize("version", ["v1", "v2", "v3", "v4", "v5"])
def test_every_version_is_read(version: str) -> None:
    held = golden(version)
    assert Decoder(Topic).decode(held["topic"]) == TOPIC
    assert Decoder(Shard).decode(held["shard"]) == SHARD
    assert Decoder(Segment).decode(held["segment"]) == SEGMENT
    assert Decoder(Node).decode(held["node"]) == NODE
    assert Decoder(Lease).decode(held["lease"]) == LEASE
    assert Decoder(tuple[Event, ...]).decode(held["events"]) == EVENTS
    assert metadata.decode_request(held["request"]) == REQUEST
    assert offset.decode_request(held["save"]) == SAVE
    assert offset_rows.unpack_offset(held["offset-row"]) == COMMITTED
    assert fmt.decode_entry(17, held["entry"]) == ENTRY
    assert fmt.decode_identity(held["identity"]) == IDENTITY


def test_the_design_page_has_the_tables_of_the_code() -> None:
    page = DESIGN.read_text(encoding="utf-8")
    for layout in (
        fmt.HARD_STATE,
        fmt.CUT,
        fmt.ENTRY,
        fmt.APPLIED,
        DURABLE_POINT,
        answers.HEAD,
        offset_rows.OFFSET_ROW,
        offset_rows.GROUP_ROW,
    ):
        assert layout.as_markdown() in page, layout.name
