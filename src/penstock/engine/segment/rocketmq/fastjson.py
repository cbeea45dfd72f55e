"""fastjson's dialect of JSON, as RocketMQ writes it: maps with integer keys have no quotes around
them (`{0:17,1:5}`), which no JSON parser takes.

`parse_json` takes both dialects, and says in which file and at which byte it stopped understanding.
"""

from __future__ import annotations

import json
import re
from typing import Final

from penstock.errors import CorruptionError

Json = None | bool | int | float | str | list["Json"] | dict[str | int, "Json"]
JsonDict = dict[str | int, Json]
"""A bare integer key is an int; a key in quotes is a str."""

_DEPTH_MAX: Final = 64
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_BARE_KEY: Final = re.compile(r"-?[0-9]{1,19}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,40}(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_STRING: Final = re.compile(r'"([^"\\\x00-\x1f]|\\.)*"')
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}


def parse_json(data: bytes, path: str) -> Json:
    """Return the value in `data`; `CorruptionError` names `path` and the byte that is wrong."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(path, position=error.start, reason="not UTF-8") from error
    try:
        # Nearly always it is JSON, and the library is many times faster.
        value: Json = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _Parser(text, path).parse()
    return value


def _refuse(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


def write_json(value: Json) -> str:
    """Return `value` as RocketMQ's managers write it: tabs, a line per entry, integer keys bare."""
    return _write(value, "\n")


class _Parser:
    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._at = 0

    def parse(self) -> Json:
        value = self._value(0)
        self._skip_space()
        if self._at != len(self._text):
            raise self._error("more text after the value")
        return value

    def _value(self, depth: int) -> Json:
        if depth > _DEPTH_MAX:
            raise self._error(f"nested deeper than {_DEPTH_MAX}")
        self._skip_space()
        match self._text[self._at : self._at + 1]:
            case "{":
                return self._dict(depth)
            case "[":
                return self._list(depth)
            case '"':
                return self._string()
            case _:
                return self._scalar()

    def _dict(self, depth: int) -> JsonDict:
        members: JsonDict = {}
        self._at += 1
        while not self._accept("}"):
            if members and not self._accept(","):
                raise self._error("',' or '}' expected")
            self._skip_space()
            key = self._key()
            if not self._accept(":"):
                raise self._error("':' expected")
            members[key] = self._value(depth + 1)
        return members

    def _list(self, depth: int) -> list[Json]:
        elements: list[Json] = []
        self._at += 1
        while not self._accept("]"):
            if elements and not self._accept(","):
                raise self._error("',' or ']' expected")
            elements.append(self._value(depth + 1))
        return elements

    def _key(self) -> str | int:
        if self._text.startswith('"', self._at):
            return self._string()
        match = _BARE_KEY.match(self._text, self._at)
        if match is None:
            raise self._error("a key in quotes, or an integer, expected")
        self._at = match.end()
        return int(match.group())

    def _string(self) -> str:
        match = _STRING.match(self._text, self._at)
        if match is None:
            raise self._error("text without its closing quote")
        try:
            value = json.loads(match.group())
        except ValueError as error:
            raise self._error(f"text with a wrong escape: {error}") from error
        assert isinstance(value, str)
        self._at = match.end()
        return value

    def _scalar(self) -> Json:
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        match = _NUMBER.match(self._text, self._at)
        if match is None:
            raise self._error("a value expected")
        self._at = match.end()
        is_float = match.group(1) is not None or match.group(2) is not None
        return float(match.group()) if is_float else int(match.group())

    def _accept(self, character: str) -> bool:
        self._skip_space()
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        return True

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _error(self, reason: str) -> CorruptionError:
        position = len(self._text[: self._at].encode())
        return CorruptionError(self._path, position=position, reason=reason)


def _write(value: Json, line: str) -> str:
    inner = f"{line}\t"
    if isinstance(value, dict) and value:
        entries = (f"{_write_key(key)}:{_write(item, inner)}" for key, item in value.items())
        return f"{{{inner}{f',{inner}'.join(entries)}{line}}}"
    if isinstance(value, list) and value:
        return f"[{inner}{f',{inner}'.join(_write(item, inner) for item in value)}{line}]"
    return json.dumps(value, ensure_ascii=False)


def _write_key(key: str | int) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key, ensure_ascii=False)
