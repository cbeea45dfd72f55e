"""Java's properties files, as Java reads and writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.golden_store import GoldenStore

from penstock.engine.segment.rocketmq.java_properties import read_properties, write_properties


def test_the_sizes_of_a_store_are_read(golden: GoldenStore) -> None:
    text = (golden.root / "store.properties").read_text(encoding="utf-8")
    values = read_properties(text)
    assert values == {
        "mappedFileSizeCommitLog": "1048576",
        "mappedFileSizeConsumeQueue": "2000",
        "mapperFileSizeBatchConsumeQueue": "920",
        "maxHashSlotNum": "100",
        "maxIndexNum": "400",
    }
    assert read_properties(write_properties(values)) == values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("# comment\n! comment\n\n  # comment", {}),
        ("a=1\nb:2\nc 3\nd\t=\t4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("  a = b = c  ", {"a": "b = c  "}),
        ("a", {"a": ""}),
        ("a=1\na=2", {"a": "2"}),
        ("a=one\\\n   two", {"a": "onetwo"}),
        ("a=one\\\\\nb=2", {"a": "one\\", "b": "2"}),
        ("a\\=b=c\\:d", {"a=b": "c:d"}),
        ("a=\\u0416\\t\\n\\q", {"a": "Ж\t\nq"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=end\\", {"a": "end"}),
    ],
)
def test_lines_mean_what_java_says(text: str, values: dict[str, str]) -> None:
    assert read_properties(text) == values


@given(values=st.dictionaries(st.text(max_size=6), st.text(max_size=6), max_size=4))
def test_anything_written_comes_back(values: dict[str, str]) -> None:
    text = write_properties(values)
    assert text.isascii()
    assert read_properties(text) == values
