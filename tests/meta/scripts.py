"""Runs the text scripts in `testdata`: a command a line, what it answers indented below it.

    PENSTOCK_REWRITE=1 pytest tests/meta/test_scripts.py     writes what the machines answer now

A command is a tag of the state machine followed by its fields; values are JSON, or plain text. `at
1000` sets the time that the next commands carry, `again ID command…` gives a request id, `show`
prints the rows. Every rejected command is checked to have changed no row.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, get_args

import msgspec
from msgspec import Struct

from penstock.meta.state.answers import Rejected
from penstock.meta.state.view import MemoryView, Row

JsonValue = str | int | float | bool | list["JsonValue"] | dict[str, "JsonValue"] | None


class Shown(Protocol):
    """A state machine that a script drives."""

    def commands(self) -> dict[str, type[Struct]]: ...
    def run(self, view: MemoryView, command: Struct, time_ms: int, request_id: str) -> object: ...
    def show(self, view: MemoryView) -> Iterable[str]: ...


def tags(union: object) -> dict[str, type[Struct]]:
    """Return the members of a closed union by their tags."""
    found: dict[str, type[Struct]] = {}
    for member in get_args(union):
        tag = member.__struct_config__.tag
        found[tag] = member
    return found


def play(path: Path, machine: Shown) -> str:
    """Return the script with the answers that the machine gives now."""
    view = MemoryView()
    time_ms = 0
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("  "):
            continue
        lines.append(line)
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "at":
            time_ms = int(rest)
        elif word == "show":
            lines += [f"  {shown}" for shown in machine.show(view)]
        else:
            request_id, command = "", line
            if word == "again":
                request_id, _, command = rest.partition(" ")
            lines += [f"  {said}" for said in _run(machine, view, command, time_ms, request_id)]
    return "\n".join(lines) + "\n"


def _run(machine: Shown, view: MemoryView, line: str, time_ms: int, request_id: str) -> list[str]:
    before = rows(view)
    try:
        command = parse(machine.commands(), line)
    except msgspec.ValidationError as error:
        return [f"refused: {error}"]
    answer = machine.run(view, command, time_ms, request_id)
    if isinstance(answer, Rejected):
        assert rows(view) == before, f"a rejected command changed rows: {line}"
        return [f"rejected {answer.code}: {answer.reason}"]
    return str(answer).splitlines()


def rows(view: MemoryView) -> list[Row]:
    return list(view.scan(b"", b"\xff" * 16))


def parse(commands: dict[str, type[Struct]], line: str) -> Struct:
    words = shlex.split(line)
    kind = commands[words[0]]
    values: dict[str, JsonValue] = {}
    for word in words[1:]:
        name, _, text = word.partition("=")
        values[name] = _value(text)
    return build(kind, values)


def build(kind: type[Struct], values: dict[str, JsonValue]) -> Struct:
    """Build a structure from names and values, nested ones too, checked as when decoded."""
    arguments: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        if field.name not in values:
            continue
        value = values[field.name]
        nested = [
            part
            for part in (field.type, *get_args(field.type))
            if isinstance(part, type) and issubclass(part, Struct)
        ]
        if isinstance(value, dict) and nested:
            arguments[field.name] = build(nested[0], value)
        else:
            arguments[field.name] = msgspec.convert(value, field.type)
    return kind(**arguments)


def _value(text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text)
    except ValueError:
        return text
    return value


def check(path: Path, machine: Shown, *, rewrite: bool, write: Callable[[str], object]) -> None:
    played = play(path, machine)
    if rewrite:
        write(played)
    assert played == path.read_text()
