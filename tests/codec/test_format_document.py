"""The document of the format cannot go stale: its tables come from the declarations.

`REWRITE=1 pytest tests/codec/test_format_document.py` writes the tables anew.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
from pathlib import Path

from penstock import codec
from penstock.codec.format import (
    CHECKSUM,
    ENVELOPE,
    EXPIRES,
    GROUP,
    KAFKA,
    MULTI_TAG,
    PRODUCER,
    RESERVED_PREFIXES,
    TIME_BLOCK,
)
from penstock.engine import segment
from penstock.engine.segment.queue import shard_state
from penstock.platform.layout import Layout
from penstock.record import QueueKind

DOCUMENT = Path(__file__).parents[2] / "docs" / "format.md"
TABLE = re.compile(r"<!-- layout: (?P<name>.+) -->\n\n(?P<table>(?:\|.*\n)*)")


def layouts() -> dict[str, Layout]:
    """Return every layout that the segment engine declares, by name."""
    found: dict[str, Layout] = {}
    modules = [
        module.name
        for package in (codec, segment)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    for module in modules:
        content = vars(importlib.import_module(module))
        for name, value in content.items():
            if isinstance(value, Layout) and not name.startswith("_"):
                found[value.name] = value
    return found


def with_current_tables(text: str) -> str:
    known = layouts()

    def replace(match: re.Match[str]) -> str:
        layout = known.get(match["name"])
        table = match["table"] if layout is None else f"{layout.as_markdown()}\n"
        return f"<!-- layout: {match['name']} -->\n\n{table}"

    return TABLE.sub(replace, text)


def test_every_table_in_the_document_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    if os.environ.get("REWRITE") == "1":
        text = with_current_tables(text)
        DOCUMENT.write_text(text, encoding="utf-8")
    assert text == with_current_tables(text)


def test_every_layout_is_in_the_document() -> None:
    shown = [match["name"] for match in TABLE.finditer(DOCUMENT.read_text(encoding="utf-8"))]
    assert sorted(shown) == sorted(layouts())


def test_every_property_of_ours_is_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    names = (ENVELOPE, EXPIRES, KAFKA, PRODUCER, GROUP, CHECKSUM, MULTI_TAG, *RESERVED_PREFIXES)
    assert [name for name in names if f"`{name}`" not in text] == []
    assert f"every {TIME_BLOCK} offsets" in text


def test_every_item_of_a_shards_state_is_in_the_document_in_its_order() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    table = text.partition("| item | meaning |")[2].partition("\n\n")[0]
    assert tuple(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == state_fields()
    assert all(f"`{kind.value}`" in table for kind in QueueKind)


def state_fields() -> tuple[str, ...]:
    return shard_state._Packed.__struct_fields__
