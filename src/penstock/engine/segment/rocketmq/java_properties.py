"""Java's `.properties` files, of which RocketMQ and `store.properties` use the plain part.

Lines of `name=value`, `name:value` or `name value`; `#` and `!` begin comments; a backslash at the
end of a line joins the next one, and before a character makes it ordinary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_SPLIT: Final = re.compile(
    r"(?P<name>(?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NAMED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_WRITTEN: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def read_properties(text: str) -> dict[str, str]:
    """Return names and values; the last of a repeated name wins, as in Java."""
    properties: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _SPLIT.fullmatch(line)
        assert match is not None, "the pattern takes any text"
        properties[_unescape(match["name"])] = _unescape(match["value"])
    return properties


def write_properties(values: Mapping[str, str]) -> str:
    """Return the text that Java, and `read_properties`, read `values` from."""
    return "".join(
        f"{_escape(name, '=: #!')}={_escape(value, '')}\n" for name, value in values.items()
    )


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    joined = ""
    for line in re.split(r"\r\n|\r|\n", text):
        part = line.lstrip(" \t\f")
        if not joined and (not part or part[0] in "#!"):
            continue
        joined += part
        if (len(joined) - len(joined.rstrip("\\"))) % 2 == 1:
            joined = joined[:-1]
            continue
        lines.append(joined)
        joined = ""
    return [*lines, joined] if joined else lines


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        return _NAMED.get(escaped, escaped)

    units = _ESCAPE.sub(replace, text).encode("utf-16-be", "surrogatepass")
    return units.decode("utf-16-be", "surrogatepass")


def _escape(text: str, special: str) -> str:
    escaped = "".join(
        f"\\{char}" if char in special else _WRITTEN.get(char) or _as_ascii(char) for char in text
    )
    # A value's leading space would be read as part of the separator.
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _as_ascii(character: str) -> str:
    """Java reads the file as Latin-1, so that anything beyond ASCII is written in UTF-16 units."""
    if character.isascii():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[n : n + 2].hex()}" for n in range(0, len(units), 2))
