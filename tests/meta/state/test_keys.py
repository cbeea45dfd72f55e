"""Keys keep the order of their parts, whatever the texts hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.meta.state.keys import after_prefix, begin_of_text, decode_texts, encode_key

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text(
    "\x00\x01\xff/_a", max_size=6
)


@given(left=st.lists(texts, max_size=3), right=st.lists(texts, max_size=3))
def test_keys_sort_as_their_parts_do(left: list[str], right: list[str]) -> None:
    as_bytes = [[part.encode() for part in parts] for parts in (left, right)]
    keys = [encode_key(7, *left), encode_key(7, *right)]
    assert (keys[0] < keys[1]) == (as_bytes[0] < as_bytes[1])
    assert (keys[0] == keys[1]) == (left == right)


@given(parts=st.lists(texts, max_size=4))
def test_texts_come_back_from_a_key(parts: list[str]) -> None:
    assert decode_texts(encode_key(7, *parts)) == parts


@given(parts=st.lists(texts, max_size=2), more=st.lists(texts, min_size=1, max_size=2))
def test_a_prefix_covers_its_keys_and_no_others(parts: list[str], more: list[str]) -> None:
    prefix = encode_key(7, *parts)
    assert prefix <= encode_key(7, *parts, *more) < after_prefix(prefix)
    longer_text = encode_key(7, *parts[:-1], (parts[-1] if parts else "") + "a")
    if parts:
        assert not prefix <= longer_text < after_prefix(prefix)


def test_numbers_sort_as_numbers() -> None:
    keys = [encode_key(1, "a", number) for number in (0, 1, 9, 10, 255, 256, 1 << 62)]
    assert keys == sorted(keys)


@given(texts, texts, texts)
def test_the_begin_of_a_text_covers_the_texts_that_begin_so(a: str, b: str, begin: str) -> None:
    prefix = encode_key(7, a) + begin_of_text(begin)
    for text in (b, begin + b):
        covered = prefix <= encode_key(7, a, text) < after_prefix(prefix)
        assert covered == text.startswith(begin)


def test_a_prefix_of_highest_bytes_still_has_an_end() -> None:
    assert after_prefix(b"\x01\xff\xff") == b"\x02"
