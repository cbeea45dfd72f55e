"""Records of every kind that a producer may hand over, for Hypothesis.

The interesting ones are near a border: bytes that properties cannot hold, names that mean something
to RocketMQ, escapes of bytes that are not UTF-8, tags and headers that repeat.
"""

from __future__ import annotations

from hypothesis import strategies as st

from penstock.record import Record

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

awkward_bytes = st.sampled_from(
    [b"", b" ", b"a b", b"\x01", b"a\x02b", b"\xff\xfe", b"\xed\xa0\x80", b"\0", "ключ".encode()]
)
any_bytes = st.one_of(awkward_bytes, st.binary(max_size=20), st.text(max_size=8).map(str.encode))

# Text that bytes stand for: what decoding any bytes gives.
any_text = any_bytes.map(lambda data: data.decode("utf-8", "surrogateescape"))
names = st.one_of(
    st.sampled_from(["KEYS", "TAGS", "WAIT", "PSTK_ENV", "INNER_NUM", "__CRC32#", "region", "имя"]),
    any_text,
)

plain_records = st.builds(
    Record,
    value=st.binary(max_size=60),
    key=st.none() | st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True).map(str.encode),
    tags=st.sampled_from([(), ("TagA",), ("TagB",), ("标签",)]),
    headers=st.sampled_from([(), (("region", b"eu"),), (("a", b"1"), ("b", "значение".encode()))]),
    timestamp_ms=st.none() | st.integers(0, 1 << 41),
)

any_records = st.one_of(
    plain_records,
    st.builds(
        Record,
        value=st.none() | any_bytes | st.binary(min_size=200, max_size=400),
        key=st.none() | any_bytes,
        tags=st.lists(any_text, max_size=4).map(tuple),
        headers=st.lists(st.tuples(names, st.none() | any_bytes), max_size=4).map(tuple),
        timestamp_ms=st.none() | INT64,
        expires_at_ms=st.none() | INT64,
    ),
)

hosts = st.sampled_from([8, 20]).flatmap(lambda size: st.binary(min_size=size, max_size=size))
topics = st.sampled_from(["orders", "orders%RETRY_v1", "t" * 127, "t" * 128, "тема" * 40])
