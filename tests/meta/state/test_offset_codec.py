"""Saved offsets as rows: the native loops do what the written ones do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.meta.state import offset_codec as packing
from penstock.meta.state.offset_codec import PackedSave, pack_group, put_newer, unpack_save
from penstock.meta.state.offsets import commands as cmd
from penstock.meta.state.offsets import machine as offset
from penstock.meta.state.view import MemoryView, Overlay

native = pytest.mark.skipif(not packing.IS_NATIVE, reason="compares the extension")

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40)
counts = st.one_of(st.integers(0, 300), st.integers(0, (1 << 63) - 1))
entries = st.builds(
    cmd.OffsetEntry,
    shard=names,
    offset=counts,
    epoch=counts.filter(bool),
    sequence=counts,
    commit_timestamp_ms=counts,
    leader_epoch=st.integers(-((1 << 63) - 1), (1 << 63) - 1),
    metadata=st.text(st.characters(codec="utf-8"), max_size=300),
)
groups = st.builds(
    cmd.GroupOffsets,
    namespace=names,
    group=names,
    entries=st.lists(entries, max_size=20).map(tuple),
)


def save_request(found: list[cmd.GroupOffsets], request_id: str = "") -> cmd.OffsetRequest:
    return cmd.OffsetRequest(7, cmd.SaveOffsets(tuple(found)), request_id)


@native
@given(st.lists(groups, max_size=3))
def test_bytes_become_the_rows_that_their_entries_become(found: list[cmd.GroupOffsets]) -> None:
    request = save_request(found)
    packed = PackedSave(7, [pack_group(one) for one in found])
    assert unpack_save(offset.encode_request(request)) == packed


@native
@given(st.lists(groups, max_size=2), st.data())
def test_what_is_damaged_is_left_to_the_decoder(
    found: list[cmd.GroupOffsets], data: st.DataObject
) -> None:
    whole = offset.encode_request(save_request(found))
    at = data.draw(st.integers(0, len(whole) - 1))
    assert unpack_save(whole[:at]) is None
    assert unpack_save(whole + b"\0") is None
    damaged = whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :]
    packed = unpack_save(damaged)
    if packed is not None:
        # It is a good request all the same: another one.
        command = offset.decode_request(damaged).command
        assert isinstance(command, cmd.SaveOffsets)
        assert packed.groups == [pack_group(one) for one in command.groups]


@native
@pytest.mark.parametrize(
    "request_",
    [
        save_request([], request_id="once"),
        cmd.OffsetRequest(7, cmd.DeleteGroup("n", "g")),
        save_request([cmd.GroupOffsets("", "g", ())]),
        save_request([cmd.GroupOffsets("n", "g", (cmd.OffsetEntry("s", -1, 1, 1, 1),))]),
        save_request([cmd.GroupOffsets("n", "g", (cmd.OffsetEntry("s", 1, 0, 1, 1),))]),
        save_request(
            [cmd.GroupOffsets("n", "g", (cmd.OffsetEntry("s", 1, 1, 1, 1, -1, "é" * 4_097),))]
        ),
    ],
)
def test_other_requests_and_bad_ones_are_left_to_the_decoder(request_: cmd.OffsetRequest) -> None:
    assert unpack_save(offset.encode_request(request_)) is None


small_rows = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.binary(min_size=2, max_size=4)),
    max_size=12,
)


@native
@given(small_rows, small_rows, small_rows)
def test_rows_are_put_when_they_are_newer(
    below: list[tuple[bytes, bytes]],
    cached: list[tuple[bytes, bytes]],
    put: list[tuple[bytes, bytes]],
) -> None:
    rows = MemoryView()
    for key, row in [*below, *cached]:
        rows.put(key, row)
    caches: dict[bytes, bytes | None] = {key: rows.get(key) for key, _ in cached}
    keys, values = [key for key, _ in put], [row for _, row in put]
    overlay = Overlay(rows, ({}, caches))
    refused = put_newer(overlay, keys, values, 2)
    plain = MemoryView()
    for key, row in rows.scan(b"", b"\xff"):
        plain.put(key, row)
    assert list(refused) == list(put_newer(plain, keys, values, 2))
    assert list(overlay.scan(b"", b"\xff")) == list(plain.scan(b"", b"\xff"))
    expected = Overlay(rows)
    for number, (key, row) in enumerate(put):
        if number not in {one for one, _ in refused}:
            expected.put(key, row)
    assert overlay.size == expected.size


@given(st.lists(groups, min_size=1, max_size=3))
def test_a_packed_save_is_applied_as_its_request(found: list[cmd.GroupOffsets]) -> None:
    one, other = MemoryView(), MemoryView()
    for view in (one, other):
        taken = tuple(cmd.GroupName("n", str(number)) for number in range(300))
        offset.apply(view, cmd.OffsetRequest(1, cmd.TakeEpochs(taken, 1)))
    packed = PackedSave(7, [pack_group(group) for group in found])
    assert offset.apply(one, save_request(found)) == offset.apply_packed(other, packed)
    assert list(one.scan(b"", b"\xff")) == list(other.scan(b"", b"\xff"))
