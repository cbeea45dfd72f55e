"""What replicas write and send is what they wrote and sent before."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from penstock.engine.contract import ShardConfig
from penstock.engine.epoch_table import EpochTable
from penstock.engine.producer_table import Write
from penstock.engine.record_rows import encode_record
from penstock.engine.rocksdb.keys import ShardKeys
from penstock.engine.rocksdb.rows import (
    FORGOTTEN_WRITE,
    REPLICA_STATE,
    decode_history,
    decode_saved,
    decode_shard,
    decode_write,
    encode_history,
    encode_saved,
    encode_write,
)
from penstock.engine.row_replica import CopiedWrite, Histories, LoggedWrite, OperationEntry, Saved
from penstock.engine.row_replica.logged_write import LOGGED_WRITE, decode_writes
from penstock.engine.row_replica.logged_write import encode_write as encode_frame
from penstock.engine.row_replica.operations import (
    Before,
    EndTransaction,
    Operation,
    Remove,
    Seal,
    Snapshot,
    decode_operations,
    encode_operation,
)
from penstock.platform.layout import Layout
from penstock.record import Producer, Record

DOCS = (Path(__file__).parents[3] / "docs" / "engines.md").read_text("utf-8")
WRITE = LoggedWrite(258, 3, 7, Producer(1, 2, 3, is_transactional=True), 4)
WRITE_ROW = (
    "00000003" "00000007" "03" "0000000000000001" "0000000000000002" "0000000000000003"
    "0000000000000004"
)  # fmt: skip


def test_the_keys_of_a_replica_are_as_they_were() -> None:
    keys, prefix = ShardKeys(258), "44" + "0000000000000102"
    assert keys.write(1).hex() == prefix + "41" + "0000000000000001"
    assert keys.operation(2).hex() == prefix + "4f" + "0000000000000002"
    assert keys.copy.hex() == prefix + "43"
    assert keys.history.hex() == prefix + "48"


def test_the_rows_of_a_replica_are_as_they_were() -> None:
    saved = Saved(1, 2, 3, 4, 5, 6)
    assert encode_saved(saved).hex() == "".join(f"{number:016x}" for number in saved)
    assert decode_saved(encode_saved(saved)) == saved
    forgotten = [(9, Write(1, 2, 3, 4, 5))]
    row = encode_write(WRITE, forgotten)
    assert row.hex() == WRITE_ROW + "".join(f"{number:016x}" for number in (9, 1, 2, 3, 4, 5))
    assert decode_write(258, row) == (WRITE, forgotten)
    plain = LoggedWrite(0, 1, 5)
    assert encode_write(plain, ()).hex() == "00000001" + "00000005" + "00" * 33
    assert decode_write(0, encode_write(plain, ())) == (plain, [])
    histories = Histories(EpochTable.from_list([(1, 0), (3, 9)]), EpochTable.from_list([(2, 5)]))
    assert encode_history(histories) == b'{"records":[[1,0],[3,9]],"operations":[[2,5]]}'
    again = decode_history(encode_history(histories))
    assert [table.to_list() for table in again] == [table.to_list() for table in histories]


def test_a_write_travels_as_it_did() -> None:
    row = encode_record(Record(value=b"v"), 1, 2, 7)
    data = encode_frame(CopiedWrite(WRITE, [(259, row)]))
    body = "0000000000000102" + WRITE_ROW + "00000001" + f"{len(row):08x}" + row.hex()
    assert data.hex() == "3cfcdd22" + f"{len(body) // 2:08x}" + body
    assert decode_writes(data, "t", 258) == [CopiedWrite(WRITE, [(259, row)])]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (Remove(9, (1, 300)), ["remove", 9, [1, 300]]),
        (Before(9), ["before", 9]),
        (Seal(9), ["seal", 9]),
        (EndTransaction(9, 4), ["transaction", 9, 4]),
        (Snapshot(9, 3, is_sealed=True, epoch_before=2), ["snapshot", 9, 3, True, 2]),
    ],
)
def test_an_operation_is_written_and_travels_as_it_did(
    operation: Operation, body: list[object]
) -> None:
    entry = OperationEntry.of(7, operation)
    assert entry.pack() == bytes.fromhex("00000007") + msgspec.msgpack.encode(body)
    assert OperationEntry.unpack(entry.pack()) == entry
    data = encode_operation(258, entry)
    assert data[8:20].hex() == "0000000000000102" + "00000007"
    assert decode_operations(data, "t", 258) == [entry]


def test_a_shard_that_an_earlier_release_wrote_has_no_replicas() -> None:
    config = msgspec.json.encode(ShardConfig())
    row = decode_shard(b'{"generation":3,"config":' + config + b',"sealed":true}')
    assert (row.generation, row.sealed, row.replicated) == (3, True, False)


@pytest.mark.parametrize("layout", [LOGGED_WRITE, FORGOTTEN_WRITE, REPLICA_STATE])
def test_the_documentation_shows_the_rows_of_a_replica(layout: Layout) -> None:
    assert re.sub(r" +", " ", layout.as_markdown()) in re.sub(r" +", " ", DOCS)
