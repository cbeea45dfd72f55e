"""Commands in control records, and the names of shards."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.format import CONTROL_SUFFIX
from penstock.engine.segment.control.control_records import (
    RANGES_MAX,
    TOPIC_SIZE_MAX,
    Command,
    DeleteBefore,
    DeleteOffsets,
    Seal,
    check_shard,
    check_topic,
    control_shard,
    data_shard,
    decode,
    delete_offsets,
    encode,
    is_control,
)
from penstock.errors import BadRequestError, NotSupportedError
from penstock.record import Offset, ShardId, StoredRecord

OFFSET_MAX = (1 << 63) - 1

spans = st.tuples(st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX)).filter(
    lambda pair: pair[0] < pair[1]
)
commands: st.SearchStrategy[Command] = st.one_of(
    st.lists(spans, min_size=1).map(lambda each: DeleteOffsets(ranges=tuple(each))),
    st.integers(0, OFFSET_MAX).map(lambda offset: DeleteBefore(offset=offset)),
    st.just(Seal()),
)


def stored(value: bytes | None) -> StoredRecord:
    return StoredRecord(Offset(7), value, None, (), (), 0, None, 0, 0)


@given(commands)
def test_a_command_comes_back_as_it_was(command: Command) -> None:
    record = encode(command)
    assert record.value is not None
    assert decode(record.value) == command
    assert decode(stored(record.value)) == command


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (
            DeleteOffsets(ranges=((3, 5), (9, 10))),
            '{"command":"delete_offsets","version":1,"ranges":[[3,5],[9,10]]}',
        ),
        (DeleteBefore(offset=4096), '{"command":"delete_before","version":1,"offset":4096}'),
        (Seal(), '{"command":"seal","version":1}'),
    ],
)
def test_the_bytes_of_version_1_stay_readable_for_ever(command: Command, text: str) -> None:
    assert encode(command).value == text.encode()
    assert decode(text.encode()) == command


@pytest.mark.parametrize(
    "body",
    [
        b'{"command":"seal","version":2}',
        b'{"command":"unseal","version":1}',
        b'{"command":"delete_offsets","version":9,"ranges":"in a form of its own"}',
    ],
)
def test_a_command_of_a_newer_release_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(NotSupportedError, match=json.loads(body)["command"]) as caught:
        decode(stored(body))
    assert "newer release" in str(caught.value)
    assert "offset 7" in str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"command":"seal"}',
        b'{"command":"seal","version":0}',
        b'{"command":"seal","version":"1"}',
        b'{"command":"delete_before","version":1}',
        b'{"command":"delete_before","version":1,"offset":-1}',
        b'{"command":"delete_before","version":1,"offset":9223372036854775808}',
        b'{"command":"delete_offsets","version":1,"ranges":[]}',
        b'{"command":"delete_offsets","version":1,"ranges":[[5,5]]}',
        b'{"command":"delete_offsets","version":1,"ranges":[[5]]}',
        b'{"command":"delete_offsets","version":1,"ranges":[[-1,5]]}',
        b'{"command":"seal","version":1',
    ],
)
def test_what_is_no_command_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="is not a command"):
        decode(body)


def test_a_tombstone_is_no_command() -> None:
    with pytest.raises(BadRequestError, match="at offset 7"):
        decode(stored(None))


@given(st.binary(max_size=60))
def test_random_bytes_are_refused_with_a_typed_error(body: bytes) -> None:
    with pytest.raises((BadRequestError, NotSupportedError)):
        decode(body)


def test_an_unknown_field_of_a_known_version_is_passed_over() -> None:
    assert decode(b'{"command":"seal","version":1,"by":"an operator"}') == Seal()


def test_single_offsets_become_the_fewest_ranges() -> None:
    assert delete_offsets([5, 3, 4, 9, 4]) == [DeleteOffsets(ranges=((3, 6), (9, 10)))]
    assert delete_offsets([]) == []


def test_many_offsets_become_several_commands_each_within_its_bound() -> None:
    made = delete_offsets(range(0, 2 * (2 * RANGES_MAX + 1), 2))
    assert [len(each.ranges) for each in made] == [RANGES_MAX, RANGES_MAX, 1]
    huge = DeleteOffsets(ranges=((OFFSET_MAX - 1, OFFSET_MAX),) * RANGES_MAX)
    assert len(encode(huge).value or b"") < 400_000


def test_a_shard_and_its_companion_name_each_other() -> None:
    shard = ShardId("orders-01J", 3)
    companion = control_shard(shard)
    assert companion == ShardId("orders-01J%ctl", 3)
    assert data_shard(companion) == shard
    assert (is_control(shard), is_control(companion)) == (False, True)
    with pytest.raises(AssertionError):
        control_shard(companion)
    with pytest.raises(AssertionError):
        data_shard(shard)


@pytest.mark.parametrize("topic", ["a", "%RETRY%g", "A_b-9|c", "x" * TOPIC_SIZE_MAX])
def test_names_that_rocketmq_reads_are_legal(topic: str) -> None:
    check_topic(topic)
    check_shard(ShardId(topic, 0))
    assert len(control_shard(ShardId(topic, 0)).topic) <= 255


@pytest.mark.parametrize(
    "topic",
    ["", " ", "a b", "a/b", "..", "a.b", "ü", "a\n", "٣", "x" * (TOPIC_SIZE_MAX + 1)],
)
def test_names_that_rocketmq_or_a_directory_cannot_have_are_refused(topic: str) -> None:
    with pytest.raises(BadRequestError):
        check_topic(topic)


@pytest.mark.parametrize("topic", [CONTROL_SUFFIX, "orders" + CONTROL_SUFFIX])
def test_nobody_may_create_a_companion(topic: str) -> None:
    with pytest.raises(BadRequestError, match="reserved"):
        check_topic(topic)


@pytest.mark.parametrize("partition", [-1, 1 << 31])
def test_partitions_are_those_of_rocketmq(partition: int) -> None:
    with pytest.raises(BadRequestError):
        check_shard(ShardId("orders", partition))
