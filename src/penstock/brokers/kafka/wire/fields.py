"""A message of the protocol, version-neutral: requests and responses of handlers.

A request is a `Fields`: its names are kio's (`group_id`, `session_timeout`), in the units of the
wire (durations and times are milliseconds, error codes are numbers). A field that the version at
hand does not have is missing; the accessors then return their default.

A response is any mapping of such names: fields that the version does not have are left out, missing
ones get Kafka's default. One handler so serves all versions of its API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

Response = Mapping[str, object]

NO_UUID: Final = UUID(int=0)


class Fields(dict[str, object]):
    """One message, or one element of an array in it."""

    __slots__ = ()

    def number(self, name: str, default: int = 0) -> int:
        value = self.get(name, default)
        assert isinstance(value, int), name
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.get(name, default)
        assert isinstance(value, bool), name
        return value

    def text(self, name: str, default: str = "") -> str:
        """A text; null counts as missing."""
        value = self.get(name)
        if value is None:
            return default
        assert isinstance(value, str), name
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.get(name)
        assert value is None or isinstance(value, str), name
        return value

    def blob(self, name: str) -> bytes:
        value = self.get(name)
        if value is None:
            return b""
        assert isinstance(value, bytes), name
        return value

    def uuid(self, name: str) -> UUID:
        value = self.get(name, NO_UUID)
        assert isinstance(value, UUID), name
        return value

    def items_of(self, name: str) -> list[Fields]:
        """The elements of an array; none when it is null or missing."""
        return self.optional_items(name) or []

    def optional_items(self, name: str) -> list[Fields] | None:
        value = self.get(name)
        if value is None:
            return None
        assert isinstance(value, list), name
        return value

    def numbers(self, name: str) -> list[int]:
        return self.optional_numbers(name) or []

    def optional_numbers(self, name: str) -> list[int] | None:
        value = self.get(name)
        assert value is None or isinstance(value, list), name
        return value

    def texts(self, name: str) -> list[str]:
        return self.optional_texts(name) or []

    def optional_texts(self, name: str) -> list[str] | None:
        value = self.get(name)
        assert value is None or isinstance(value, list), name
        return value
