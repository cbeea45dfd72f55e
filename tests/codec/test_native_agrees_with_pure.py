"""The same history on both backends: the same answers, the same bytes, the same refusals.

The Python backend is the specification. Whatever these tests find is a bug of the native one, or a
sentence missing in `interface.py`. Reasons of damage are for people and may be worded apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codec.golden_store import GoldenStore
from tests.codec.kafka_builder import kafka_batch
from tests.codec.record_strategies import (
    any_bytes,
    any_records,
    any_text,
    plain_records,
    topics,
)
from tests.codec.test_batches import inner_message, kafka_records
from tests.codec.workbench import HOST, HOST_IPV6, NOW

from penstock.codec.format import (
    KIND_BATCH,
    KIND_SIMPLE,
    Damage,
    RawRecord,
    index_file_size,
)
from penstock.codec.select import Core
from penstock.errors import StoreError
from penstock.record import Record

P = ParamSpec("P")
Twins = tuple[Core, Core]
FILE_SIZE = 3000
SLOTS, ENTRIES = 5, 12

often = settings(max_examples=150 if settings.get_current_profile_name() == "default" else 2000)

SIMPLE, BATCH = 0, 1  # handles of the queues that a history begins with

small = st.integers(-1, 12)
handles = st.sampled_from([SIMPLE, BATCH, BATCH, SIMPLE, 2, 3, 9])
producers = st.sampled_from([None, None, "5,0,0,1", ""])
transactions = st.sampled_from([None, None, "5", "\x02"])
tag_headers = st.sampled_from([None, None, "", "h", "\u00e9", "\x01"])
nows = st.integers(NOW, NOW + 9000)
bodies = st.one_of(
    st.lists(kafka_records, min_size=1, max_size=3).map(
        lambda each: (kafka_batch(each), len(each))
    ),
    st.lists(any_bytes, min_size=1, max_size=3).map(
        lambda each: (b"".join(inner_message(body, b"KEYS\x01k\x02") for body in each), len(each))
    ),
    st.tuples(any_bytes, small),
)

operations = st.one_of(
    st.tuples(st.just("append"), handles, any_records, nows, small),
    st.tuples(st.just("append"), handles, plain_records, nows, small),
    st.tuples(
        st.just("append_many"),
        *(handles, st.lists(any_records, max_size=4), nows, small, producers, transactions),
    ),
    st.builds(
        lambda handle, body, now, kafka, producer, header: (
            *("append_batch", handle, body[0], body[1], now, 1, now - 5, producer, kafka, header),
        ),
        *(handles, bodies, nows, st.booleans(), producers, tag_headers),
    ),
    st.tuples(st.just("truncate_queue"), handles, small, small),
    st.tuples(st.just("drop_units"), handles, small),
    st.tuples(st.just("read_units"), handles, small, small),
    st.tuples(st.just("drain_times"), handles),
    st.tuples(st.just("set_block_max"), handles, small),
    st.tuples(
        st.just("add_queue"), topics, small, st.sampled_from([KIND_SIMPLE, KIND_BATCH, 2]), small,
        small,
    ),
    st.tuples(st.just("remove_queue"), handles),
    st.tuples(st.just("release_index")),
    st.tuples(st.just("next_index")),
    st.tuples(st.just("next_log")),
    st.tuples(st.just("replay"), st.booleans(), st.booleans()),
    st.tuples(st.just("copy"), handles, small),
)  # fmt: skip


class History:
    """One backend and everything it was given to write into."""

    def __init__(self, core: Core, hosts: tuple[bytes, bytes]) -> None:
        self.core = core
        self.logs: list[bytearray] = []
        self.indexes: list[bytearray] = []
        self.appender = core.Appender(*hosts, 1500)
        self.appender.add_queue("orders", 0, KIND_SIMPLE, 0, 0)
        self.appender.add_queue("batches", 0, KIND_BATCH, 3, 1)
        self.next_log()
        self.next_index()

    def next_log(self) -> None:
        if self.logs:
            self.appender.finish_log()
        base = len(self.logs) * FILE_SIZE
        self.logs.append(bytearray(FILE_SIZE))
        self.appender.attach_log(self.logs[-1], base, base)

    def next_index(self) -> None:
        self.indexes.append(bytearray(index_file_size(SLOTS, ENTRIES)))
        self.appender.attach_index(self.indexes[-1], SLOTS, ENTRIES)

    def replay(self, index: bool, groups: bool) -> list[object]:
        answers: list[object] = []
        for n, log in enumerate(self.logs):
            base = n * FILE_SIZE
            answer = self.appender.replay(log, base, base, base + FILE_SIZE, index, "s", groups)
            answers.append(without_reasons(answer))
        return answers

    def copy(self, handle: int, back: int) -> int:
        """Append the newest log's bytes from some way back, whatever they are."""
        end = self.appender.end - (len(self.logs) - 1) * FILE_SIZE
        return self.appender.append_encoded(handle, self.logs[-1][max(end - 200 * back, 0) : end])

    def do(self, operation: tuple[object, ...]) -> object:
        name, *arguments = operation
        target = self if name in {"next_log", "next_index", "replay", "copy"} else self.appender
        return ask(getattr(target, str(name)), *arguments)

    def state(self) -> object:
        appender = self.appender
        return (
            appender.end,
            appender.last_store_timestamp_ms,
            appender.queues(),
            appender.dirty_queues(),
            [appender.peek_units(queue[0]) for queue in appender.queues()],
            [appender.held_units(queue[0]) for queue in appender.queues()],
            [appender.block_max(queue[0]) for queue in appender.queues()],
            (appender.index_attached, appender.index_full, appender.index_room),
            self.logs,
            self.indexes,
        )


def without_reasons(answer: object) -> object:
    """Return an answer with every reason of damage left out."""
    if isinstance(answer, Damage):
        return ("damage", answer.position)
    if isinstance(answer, tuple):
        return tuple(without_reasons(each) for each in answer)
    return answer


def ask(call: Callable[P, object], *args: P.args, **named: P.kwargs) -> object:
    """Return the answer, or the kind of error."""
    try:
        return without_reasons(call(*args, **named))
    except StoreError as error:
        return type(error)


@often
@given(
    history=st.lists(operations, max_size=14),
    hosts=st.sampled_from([(HOST, HOST), (HOST_IPV6, HOST), (HOST_IPV6, HOST_IPV6)]),
)
def test_any_history_leaves_both_in_the_same_state(
    both: Twins, history: list[tuple[object, ...]], hosts: tuple[bytes, bytes]
) -> None:
    pure, native = (History(core, hosts) for core in both)
    for operation in history:
        assert native.do(operation) == pure.do(operation), operation
        assert native.state() == pure.state(), operation


@often
@given(
    history=st.lists(operations, min_size=1, max_size=8),
    edits=st.lists(st.tuples(st.integers(0, FILE_SIZE - 1), st.integers(0, 255)), max_size=3),
    start=st.integers(0, 300),
    end=st.integers(0, FILE_SIZE + 20),
)
def test_a_damaged_log_is_judged_alike(
    both: Twins,
    history: list[tuple[object, ...]],
    edits: list[tuple[int, int]],
    start: int,
    end: int,
) -> None:
    writer = History(both[0], (HOST, HOST))
    for operation in history:
        writer.do(operation)
    log = writer.logs[0]
    for at, byte in edits:
        log[at] = byte
    pure, native = both
    assert ask(native.check_log, log, 0, 0, end) == ask(pure.check_log, log, 0, 0, end)
    found = pure.find_record(log, 0, start, end)
    assert native.find_record(log, 0, start, end) == found
    for at in (0, start, max(found, 0)):
        for check in (True, False):
            ours = ask(pure.decode_raw, log, 0, at, check)
            assert ask(native.decode_raw, log, 0, at, check) == ours
    for groups in (True, False):
        outcomes = []
        for core in both:
            reader = core.Appender(HOST, HOST, 1 << 20)
            reader.attach_index(bytearray(index_file_size(3, 400)), 3, 400)
            outcome = reader.replay(log, 0, 0, end, True, "s", groups)
            units = [reader.peek_units(queue[0]) for queue in reader.queues()]
            outcomes.append((without_reasons(outcome), reader.queues(), units))
        assert outcomes[0] == outcomes[1]


@often
@given(
    record=any_records,
    edits=st.lists(st.tuples(st.integers(1, 24), st.integers(0, 255)), max_size=9),
    elsewhere=st.none() | st.integers(0, 80),
)
def test_a_damaged_checksum_is_judged_alike(
    both: Twins, record: Record, edits: list[tuple[int, int]], elsewhere: int | None
) -> None:
    writer = History(both[0], (HOST, HOST))
    writer.do(("append", SIMPLE, record, NOW, 0))
    log = bytearray(writer.logs[0][: writer.appender.end])
    if elsewhere is not None:
        log[elsewhere] ^= 1
    for from_end, byte in edits:
        log[-from_end] = byte
    pure, native = both
    ours = ask(pure.decode_raw, log, 0, 0, True)
    assert ask(native.decode_raw, log, 0, 0, True) == ours


@often
@given(
    history=st.lists(operations, min_size=1, max_size=8),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2),
    handle=st.sampled_from([SIMPLE, BATCH]),
    start=st.integers(0, 6),
    limits=st.tuples(st.integers(-1, 8), st.sampled_from([-1, 0, 1, 400, 1 << 40])),
    deleted=st.sampled_from([(), ((0, 1),), ((1, 3), (4, 9))]),
    now=st.sampled_from([-(1 << 63), NOW]),
    tag=st.sampled_from([None, None, "TagA", "标签", "", "*multi*"]) | st.none() | any_text,
    key=st.none() | st.sampled_from([b"", b"k", b"a b"]) | any_bytes,
    fields=st.integers(0, 127),
)
def test_pages_are_alike(
    both: Twins,
    history: list[tuple[object, ...]],
    edits: list[tuple[int, int]],
    handle: int,
    start: int,
    limits: tuple[int, int],
    deleted: tuple[tuple[int, int], ...],
    now: int,
    tag: str | None,
    key: bytes | None,
    fields: int,
) -> None:
    writer = History(both[0], (HOST, HOST))
    for operation in history:
        if operation[0] != "remove_queue":
            writer.do(operation)
    log = bytes(writer.logs[0])
    _, held = writer.appender.peek_units(handle)
    units = bytearray(held)
    for at, byte in edits:
        if at < len(units):
            units[at] = byte
    topic, kind = (("orders", KIND_SIMPLE), ("batches", KIND_BATCH))[handle]
    data = bytes(units)
    most, size = limits
    answers = []
    for core in both:
        read = core.read_records if kind == KIND_SIMPLE else core.read_batches
        page = ask(read, log, 0, data, start, topic, 0, most, size, deleted, now, tag, key)
        columns = ask(
            core.read_columns,
            *(log, 0, data, kind, start, topic, 0, most, size, deleted, now, tag, fields),
        )
        answers.append((page, columns))
    assert answers[1] == answers[0]


@given(
    entries=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5000)), max_size=14),
    edits=st.lists(st.tuples(st.integers(0, 299), st.integers(0, 255)), max_size=3),
    span=st.tuples(st.integers(NOW - 10, NOW + 5000), st.integers(NOW, NOW + 6000)),
    count_max=st.integers(-1, 5),
    keep=st.integers(-1, 14),
)
def test_a_damaged_index_is_judged_alike(
    both: Twins,
    entries: list[tuple[str, int]],
    edits: list[tuple[int, int]],
    span: tuple[int, int],
    count_max: int,
    keep: int,
) -> None:
    writer = History(both[0], (HOST, HOST))
    for key, delay in entries:
        writer.do(("append", SIMPLE, Record(value=b"", key=key.encode()), NOW + delay, 0))
    index = writer.indexes[0]
    for at, byte in edits:
        index[at] = byte
    for key in "abc":
        arguments = (SLOTS, ENTRIES, f"orders#{key}", *span, count_max)
        assert both[1].index_lookup(index, *arguments) == both[0].index_lookup(index, *arguments)
    relinked = [bytearray(index), bytearray(index)]
    for core, copy in zip(both, relinked, strict=True):
        core.index_relink(copy, SLOTS, ENTRIES, keep)
    assert relinked[1] == relinked[0]


@given(
    batches=st.lists(bodies, max_size=3),
    edits=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2),
    kafka=st.booleans(),
)
def test_inner_batches_are_read_alike(
    both: Twins, batches: list[tuple[bytes, int]], edits: list[tuple[int, int]], kafka: bool
) -> None:
    body = bytearray(b"".join(each for each, _ in batches))
    for at, byte in edits:
        if at < len(body):
            body[at] = byte
    ours, theirs = (ask(core.decode_inner, body, kafka, 7, NOW, 3) for core in both)
    assert theirs == ours


@given(text=st.text(), data=st.binary(max_size=40), size=st.integers(0, 1 << 21))
def test_hashes_and_patches_are_alike(both: Twins, text: str, data: bytes, size: int) -> None:
    pure, native = both
    assert native.java_hash(text) == pure.java_hash(text)
    assert native.crc_patch(0xDEAD_BEEF, size, data) == pure.crc_patch(0xDEAD_BEEF, size, data)


def test_what_rocketmq_wrote_is_decoded_alike(both: Twins, golden: GoldenStore) -> None:
    pure, native = both
    for base, log in golden.logs.items():
        position = base
        while True:
            raw = pure.decode_raw(log, base, position, True)
            assert without_reasons(native.decode_raw(log, base, position, True)) == without_reasons(
                raw
            )
            if not isinstance(raw, RawRecord):
                break
            position += raw.size


def test_warming_changes_nothing(core: Core) -> None:
    log = bytearray(range(256)) * 64
    before = bytes(log)
    for start, size in ((0, 0), (0, len(log)), (100, 5000), (0, 1 << 40), (1 << 40, 5)):
        core.prefault(log, start, size)
    assert bytes(log) == before


def test_records_fit_when_all_of_them_surely_do(core: Core) -> None:
    plain = [Record(b"abc"), Record(None, b"key"), Record(b"v", None, ("tag",))]
    assert core.all_fit(plain, 13)
    assert not core.all_fit(plain, 12)  # a character of a tag may take four bytes
    closer_looks: list[object] = [
        [],
        tuple(plain),
        [*plain, Record(b"v", headers=(("h", b"1"),))],
        [*plain, b"no record"],
        [Record("text")],  # type: ignore[arg-type]  # on purpose
        [Record(b"v", "text")],  # type: ignore[arg-type]  # on purpose
        [Record(b"v", None, ["tag"])],  # type: ignore[arg-type]  # on purpose
        [Record(b"v", None, (1,))],  # type: ignore[arg-type]  # on purpose
        None,
    ]
    for records in closer_looks:
        assert not core.all_fit(records, 1 << 20)  # type: ignore[arg-type]  # on purpose
