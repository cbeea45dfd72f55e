"""Stores that Penstock created require a checksum of every record; RocketMQ's do not."""

from __future__ import annotations

import pytest
from tests.engine.segment.rig import ORDERS, ROOT, Rig, create, fill, record, values

from penstock.codec.format import CHECKSUM_SIZE, CHECKSUM_START, RawRecord
from penstock.codec.select import core
from penstock.engine.segment.inspect import verify
from penstock.errors import BadRequestError, CorruptionError

LOG = f"{ROOT}/commitlog/00000000000000000000"
PROPERTIES = f"{ROOT}/store.properties"
FOREIGN = b"traceparent\x01ab-cd-e\x02"
assert len(FOREIGN) == CHECKSUM_SIZE


def trailers(log: bytes) -> list[int]:
    """Where the checksums of the records in a log file begin."""
    found = [log.find(CHECKSUM_START)]
    while found[-1] >= 0:
        found.append(log.find(CHECKSUM_START, found[-1] + 1))
    return found[:-1]


def overwrite(rig: Rig, at: int, data: bytes) -> None:
    log = bytearray(rig.disk.files()[LOG])
    log[at : at + len(data)] = data
    rig.disk.replace(LOG, bytes(log))


def make_lenient(rig: Rig) -> None:
    """Do what the error tells to do."""
    lines = rig.disk.files()[PROPERTIES].splitlines(keepends=True)
    rig.disk.replace(PROPERTIES, b"".join(line for line in lines if b"penstock" not in line))


def closed(count: int = 6) -> Rig:
    rig = Rig()
    create(rig.store)
    fill(rig.store, ORDERS, count)
    rig.close()
    return rig


def test_a_record_whose_checksum_was_overwritten_is_damaged() -> None:
    count = 6
    starts = trailers(closed(count).disk.files()[LOG])[-count:]
    for number, at in enumerate(starts):
        rig = closed(count)
        overwrite(rig, at, FOREIGN)
        try:
            store = rig.store
        except CorruptionError:
            # The last record is where a log may end: to cut it there would lose it in silence.
            assert number == count - 1
            continue
        for offset in range(count):
            if offset == number:
                with pytest.raises(CorruptionError):
                    store.read(ORDERS, offset, max_records=1)
            else:
                assert store.read(ORDERS, offset, max_records=1)[0].offset == offset


def test_nothing_but_the_store_can_tell() -> None:
    """The same bytes are a good record in a directory that RocketMQ may have written."""
    rig = closed()
    make_lenient(rig)
    overwrite(rig, trailers(rig.disk.files()[LOG])[-2], FOREIGN)
    assert len(values(rig.store, ORDERS)) == 6
    assert ("traceparent", b"ab-cd-e") in rig.store.read(ORDERS, 4)[0].headers


def test_a_tail_that_rocketmq_wrote_is_not_cut_off() -> None:
    rig = Rig()
    create(rig.store)
    rig.store.append(ORDERS, record(0))
    rig.store.checkpoint()
    fill(rig.store, ORDERS, 3)
    rig.abandon()
    rig.disk.kill()
    overwrite(rig, trailers(rig.disk.files()[LOG])[-2], FOREIGN)
    before = rig.disk.files()[LOG]
    with pytest.raises(CorruptionError, match="delete penstockRequiresChecksums"):
        _ = rig.store
    assert rig.disk.files()[LOG] == before
    make_lenient(rig)
    assert len(values(rig.store, ORDERS)) == 4


@pytest.mark.parametrize("lost", range(1, CHECKSUM_SIZE))
def test_a_tail_whose_checksum_a_power_cut_took_in_part_is_cut_off(lost: int) -> None:
    """A page may end inside a checksum: zeros before, the rest of it behind."""
    rig = Rig()
    create(rig.store)
    rig.store.append(ORDERS, record(0))
    rig.store.checkpoint()
    rig.store.append(ORDERS, record(1))
    rig.abandon()
    rig.disk.kill()
    overwrite(rig, trailers(rig.disk.files()[LOG])[-1], bytes(lost))
    assert values(rig.store, ORDERS) == [b"value-0"]
    assert rig.store.report.cut_reason is not None


def test_records_without_a_checksum_are_not_copied_into_such_a_store() -> None:
    rig = closed(1)
    (data,) = rig.store.read_raw(ORDERS, 0)
    at = int.from_bytes(data[28:36])
    raw = core.decode_raw(data, at, at, True)
    assert isinstance(raw, RawRecord)
    other = Rig(root="other", disk=rig.disk, clock=rig.clock)
    create(other.store)
    with pytest.raises(BadRequestError, match="no checksum"):
        other.store.append_encoded(ORDERS, core.encode_raw(raw, False))
    assert other.store.append_encoded(ORDERS, data) == 0


def test_what_the_store_requires_is_guarded_by_a_checksum_itself() -> None:
    rig = closed()
    text = rig.disk.files()[PROPERTIES]
    assert b"penstockRequiresChecksums=true" in text
    for wrong in (text.replace(b"true", b"trud"), text.replace(b"Requires", b"Requirez")):
        rig.disk.replace(PROPERTIES, wrong)
        alone = rig.copy()
        alone.disk.remove(f"{ROOT}/penstock/store.properties")
        with pytest.raises(CorruptionError, match=r"store\.properties"):
            _ = alone.store
        assert rig.store._log.files.strict, "its copy says so"
        rig.close()


def test_verify_finds_a_record_without_a_checksum() -> None:
    rig = closed()
    at = trailers(rig.disk.files()[LOG])[-3]
    assert verify(ROOT, disk=rig.disk).findings == []
    overwrite(rig, at, FOREIGN)
    (finding, *_) = verify(ROOT, disk=rig.disk).findings
    assert finding.path.endswith(LOG)
    assert "checksum" in finding.reason
