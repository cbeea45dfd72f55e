"""Generates `docs/configuration.md` from the settings tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import NODEFAULT
from msgspec.inspect import (
    BoolType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    StrType,
    StructType,
    Type,
    VarTupleType,
    type_info,
)

from penstock.settings.loading import PREFIX
from penstock.settings.tree import EMBEDDED, SERVE, Settings

_HEAD: Final = f"""# Configuration

Settings come from a TOML file, the environment and the caller, in increasing precedence. The
environment variable of a key is `{PREFIX}SECTION__KEY`, such as
`{PREFIX}BROKER__FLUSH_DISK_TYPE=SYNC_FLUSH`;
`penstock.open` takes `broker__flush_disk_type="SYNC_FLUSH"` or
`broker={{"flush_disk_type": "SYNC_FLUSH"}}`. A list given as text is JSON or comma-separated:
`{PREFIX}NODE__PEERS=1@a:9290,2@b:9290`. Unknown keys and values out of bounds are rejected, with a
suggestion.

`penstock serve` and `penstock.open` have different defaults for files and memory; the tables show
both where they differ (server / embedded).

This page is generated from the settings tree; a test keeps it current.
"""


_HEADINGS: Final = ("| key | default | values | meaning |", "|---|---|---|---|")


def as_markdown() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    tree = type_info(Settings)
    assert isinstance(tree, StructType)
    for section in tree.fields:
        assert isinstance(section.type, StructType)
        serve, embedded = getattr(SERVE, section.name), getattr(EMBEDDED, section.name)
        yield f"## [{section.name}]\n"
        yield f"{(section.type.cls.__doc__ or '').strip()}\n"
        yield from _HEADINGS
        tables: list[tuple[str, StructType]] = []
        for field in section.type.fields:
            default = _toml(getattr(serve, field.name))
            other = _toml(getattr(embedded, field.name))
            shown = f"`{default}`" if default == other else f"`{default}` / `{other}`"
            kind, meaning = _unwrap(field.type)
            yield f"| `{field.name}` | {shown} | {_values(kind)} | {meaning} |"
            if isinstance(kind, VarTupleType) and isinstance(kind.item_type, StructType):
                tables.append((field.name, kind.item_type))
        yield ""
        for name, table in tables:
            yield from _table(f"{section.name}.{name}", table)


def _table(name: str, table: StructType) -> Iterator[str]:
    """Describe the keys of a list of tables."""
    yield f"### [[{name}]]\n"
    yield f"{(table.cls.__doc__ or '').strip()}\n"
    yield from _HEADINGS
    for field in table.fields:
        shown = "required" if field.default is NODEFAULT else f"`{_toml(field.default)}`"
        kind, meaning = _unwrap(field.type)
        yield f"| `{field.name}` | {shown} | {_values(kind)} | {meaning} |"
    yield ""


def _unwrap(kind: Type) -> tuple[Type, str]:
    if isinstance(kind, Metadata):
        extra = kind.extra_json_schema or {}
        inner, meaning = _unwrap(kind.type)
        return inner, str(extra.get("description", meaning))
    return kind, ""


def _values(kind: Type) -> str:
    match kind:
        case LiteralType(values):
            return ", ".join(f"`{value}`" for value in values)
        case IntType(gt, ge, lt, le) | FloatType(gt, ge, lt, le):
            bounds = [("> ", gt), ("≥ ", ge), ("< ", lt), ("≤ ", le)]
            return ", ".join(
                f"{sign}{_bound(bound)}" for sign, bound in bounds if bound is not None
            )
        case BoolType():
            return "`true`, `false`"
        case StrType():
            return "text"
        case VarTupleType(item):
            return "list of tables" if isinstance(item, StructType) else "list of texts"
    return ""


def _bound(number: float) -> str:
    is_power = isinstance(number, int) and number > 0 and number & (number - 1) == 0
    return f"2^{int(number).bit_length() - 1}" if is_power and number >= 1 << 30 else _toml(number)


def _toml(value: object) -> str:
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return msgspec.json.encode(value).decode()
