"""Messages to bytes and back, by the layouts that kio generated from Kafka's own definitions.

kio's serializers are not used: they reject unknown tagged fields and need an object of another
class for each version. A layout is built once per message and version, at its first use.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from struct import Struct, error
from typing import Final
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.static.protocol import Entity

from penstock.brokers.kafka.wire.cursor import Cursor, MalformedRequestError
from penstock.brokers.kafka.wire.fields import NO_UUID, Fields

Reader = Callable[[Cursor], object]
Writer = Callable[[bytearray, object], None]

_NUMBERS: Final[Mapping[str, tuple[str, Reader]]] = {
    "int8": (">b", Cursor.int8),
    "int16": (">h", Cursor.int16),
    "error_code": (">h", Cursor.int16),
    "uint16": (">H", Cursor.uint16),
    "int32": (">i", Cursor.int32),
    "timedelta_i32": (">i", Cursor.int32),
    "int64": (">q", Cursor.int64),
    "timedelta_i64": (">q", Cursor.int64),
    "datetime_i64": (">q", Cursor.int64),
    "float64": (">d", Cursor.float64),
}


class _Field(typing.NamedTuple):
    name: str
    tag: int | None
    default: object
    read: Reader
    write: Writer


class Layout:
    """The byte layout of one message of one version, or of an element of its arrays."""

    __slots__ = ("_fields", "_tagged", "flexible")

    def __init__(self, fields: Iterable[_Field], *, flexible: bool) -> None:
        fields = tuple(fields)
        self.flexible: Final = flexible
        self._fields: Final = tuple(field for field in fields if field.tag is None)
        self._tagged: Final = {field.tag: field for field in fields if field.tag is not None}

    def read(self, cursor: Cursor) -> Fields:
        message = Fields()
        for field in self._fields:
            message[field.name] = field.read(cursor)
        if self.flexible:
            self._read_tagged(cursor, message)
        return message

    def _read_tagged(self, cursor: Cursor, message: Fields) -> None:
        for _ in range(cursor.varint()):
            tag, size = cursor.varint(), cursor.varint()
            field = self._tagged.get(tag)
            # Tags of a newer version, or a client's own, are skipped.
            with cursor.part(size):
                if field is not None:
                    message[field.name] = field.read(cursor)

    def write(self, out: bytearray, message: Mapping[str, object]) -> None:
        for field in self._fields:
            field.write(out, message.get(field.name, field.default))
        if self.flexible:
            self._write_tagged(out, message)

    def _write_tagged(self, out: bytearray, message: Mapping[str, object]) -> None:
        given = [
            (tag, field, message[field.name])
            for tag, field in sorted(self._tagged.items())
            if message.get(field.name, field.default) != field.default
        ]
        write_varint(out, len(given))
        for tag, field, value in given:
            part = bytearray()
            field.write(part, value)
            write_varint(out, tag)
            write_varint(out, len(part))
            out += part


def write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


@lru_cache(maxsize=512)
def request_layout(api_key: int, version: int) -> Layout:
    return _layout(load_request_schema(api_key, version))


@lru_cache(maxsize=512)
def response_layout(api_key: int, version: int) -> Layout:
    return _layout(load_response_schema(api_key, version))


def read_message(layout: Layout, cursor: Cursor) -> Fields:
    """Read one message; bytes after it are ignored."""
    try:
        return layout.read(cursor)
    except (error, OverflowError) as bad:
        raise MalformedRequestError(str(bad)) from bad


def _layout(entity: type[Entity]) -> Layout:
    flexible = entity.__flexible__
    assert dataclasses.is_dataclass(entity)
    hints = typing.get_type_hints(entity)
    fields = [
        _field(field.name, hints[field.name], field.metadata, field.default, flexible=flexible)
        for field in dataclasses.fields(entity)
    ]
    return Layout(fields, flexible=flexible)


def _field(
    name: str,
    hint: object,
    metadata: Mapping[str, object],
    default: object,
    *,
    flexible: bool,
) -> _Field:
    kind, nullable = _without_none(hint)
    tag = metadata.get("tag")
    assert tag is None or isinstance(tag, int)
    type_name = metadata.get("kafka_type")
    is_array = typing.get_origin(kind) is tuple
    inner, _ = _without_none(typing.get_args(kind)[0]) if is_array else (kind, False)
    if isinstance(type_name, str):
        codec = _primitive(type_name, flexible=flexible, nullable=nullable and not is_array)
        zero: object = _zero(type_name)
    else:
        assert isinstance(inner, type)
        codec = _nested(_layout(typing.cast("type[Entity]", inner)), nullable and not is_array)
        zero = {}
    if is_array:
        codec = _array(*codec, flexible=flexible, nullable=nullable)
        zero = ()
    if nullable and type_name not in {"uuid", "datetime_i64"}:
        zero = None
    if isinstance(default, int | str | bytes | float) and not is_array:
        zero = default
    return _Field(name, tag, zero, *codec)


def _without_none(hint: object) -> tuple[object, bool]:
    if typing.get_origin(hint) in {types.UnionType, typing.Union}:
        kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        return kinds[0], True
    return hint, False


def _zero(type_name: str) -> object:
    match type_name:
        case "string":
            return ""
        case "bytes" | "records":
            return b""
        case "uuid":
            return NO_UUID
        case "bool":
            return False
        case "datetime_i64":
            return -1
        case _:
            return 0


def _primitive(type_name: str, *, flexible: bool, nullable: bool) -> tuple[Reader, Writer]:
    if type_name in _NUMBERS:
        form, read = _NUMBERS[type_name]
        return read, _number_writer(form)
    match type_name:
        case "bool":
            return Cursor.flag, _number_writer(">?")
        case "uuid":
            return Cursor.uuid, _write_uuid
        case "string":
            return (
                lambda cursor: cursor.text(flexible=flexible, nullable=nullable),
                _text_writer(flexible=flexible),
            )
        case "bytes" | "records":
            return (
                lambda cursor: cursor.blob(flexible=flexible, nullable=nullable),
                _blob_writer(flexible=flexible),
            )
    raise AssertionError(f"kio has a type {type_name!r} that this module does not know")


def _number_writer(form: str) -> Writer:
    pack = Struct(form).pack

    def write(out: bytearray, value: object) -> None:
        out += pack(value)

    return write


def _write_uuid(out: bytearray, value: object) -> None:
    assert isinstance(value, UUID)
    out += value.bytes


def _text_writer(*, flexible: bool) -> Writer:
    size = Struct(">h").pack

    def write(out: bytearray, value: object) -> None:
        data = None if value is None else str(value).encode()
        if flexible:
            write_varint(out, 0 if data is None else len(data) + 1)
        else:
            out += size(-1 if data is None else len(data))
        out += data or b""

    return write


def _blob_writer(*, flexible: bool) -> Writer:
    size = Struct(">i").pack

    def write(out: bytearray, value: object) -> None:
        assert value is None or isinstance(value, bytes | bytearray | memoryview)
        if flexible:
            write_varint(out, 0 if value is None else len(value) + 1)
        else:
            out += size(-1 if value is None else len(value))
        out += value or b""

    return write


def _nested(layout: Layout, nullable: bool) -> tuple[Reader, Writer]:
    def read(cursor: Cursor) -> object:
        if nullable and cursor.int8() < 0:
            return None
        return layout.read(cursor)

    def write(out: bytearray, value: object) -> None:
        if nullable:
            out.append(0xFF if value is None else 1)
        if value is not None:
            assert isinstance(value, Mapping)
            layout.write(out, value)

    return read, write


def _array(
    read_item: Reader, write_item: Writer, *, flexible: bool, nullable: bool
) -> tuple[Reader, Writer]:
    count_of = Struct(">i").pack

    def read(cursor: Cursor) -> object:
        count = cursor.item_count(flexible=flexible)
        if count < 0:
            if not nullable:
                raise MalformedRequestError(f"null before {cursor.position}, where an array is due")
            return None
        return [read_item(cursor) for _ in range(count)]

    def write(out: bytearray, value: object) -> None:
        assert value is None or isinstance(value, list | tuple)
        if flexible:
            write_varint(out, 0 if value is None else len(value) + 1)
        else:
            out += count_of(-1 if value is None else len(value))
        for item in value or ():
            write_item(out, item)

    return read, write
