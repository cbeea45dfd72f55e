"""Clients that may not connect: by user name, client id or network address.

    user exact alice            client regex ^bot-\\d+$          address cidr 10.0.0.0/8

An entry may expire. Exact entries are found by hash; regular expressions and networks are tried in
turn, so their number is bounded. Entries that flapping detection makes are kept in memory only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address, ip_network
from typing import Final, Literal

import msgspec
from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.platform.clock import Clock

Kind = Literal["user", "client", "address"]
Match = Literal["exact", "regex", "cidr"]

ENTRIES_MAX: Final = 100_000
SCANNED_MAX: Final = 1_000
"""Entries of the kinds regex and cidr, each tried at every connection."""
PATTERN_MAX: Final = 256
SUBJECT_MAX: Final = 1_024


class BlacklistEntry(Struct, frozen=True, kw_only=True):
    kind: Kind
    match: Match = "exact"
    value: str
    expires_at_ms: int | None = None
    reason: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.kind, self.match, self.value)

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms


class _Scanned:
    """An entry that is tried: its value is compiled once."""

    __slots__ = ("_network", "_pattern", "entry")

    def __init__(self, entry: BlacklistEntry) -> None:
        self.entry: Final = entry
        self._pattern: Final = re.compile(entry.value) if entry.match == "regex" else None
        is_network = entry.match == "cidr"
        self._network: Final = ip_network(entry.value, strict=False) if is_network else None

    def matches(self, subject: str) -> bool:
        if self._pattern is not None:
            return self._pattern.search(subject[:SUBJECT_MAX]) is not None
        assert self._network is not None
        try:
            return ip_address(subject) in self._network
        except ValueError:
            return False


class Blacklist:
    """The entries, indexed for the check at each connection."""

    def __init__(self, clock: Clock, entries: Iterable[BlacklistEntry] = ()) -> None:
        self._clock: Final = clock
        self._exact: Final[dict[tuple[str, str, str], BlacklistEntry]] = {}
        self._scanned: Final[dict[tuple[str, str, str], _Scanned]] = {}
        for entry in entries:
            self.add(entry)

    def __len__(self) -> int:
        return len(self._exact) + len(self._scanned)

    def add(self, entry: BlacklistEntry) -> None:
        """Add or replace an entry; raise `BadRequestError` for one that cannot work."""
        _check(entry)
        if entry.match == "exact":
            if entry.key not in self._exact and len(self._exact) >= ENTRIES_MAX:
                self.remove_expired()
                _check_space(len(self._exact), ENTRIES_MAX)
            self._exact[entry.key] = entry
            return
        if entry.key not in self._scanned and len(self._scanned) >= SCANNED_MAX:
            self.remove_expired()
            _check_space(len(self._scanned), SCANNED_MAX)
        self._scanned[entry.key] = _Scanned(entry)

    def remove(self, kind: str, match: str, value: str) -> bool:
        """Remove the entry; return whether there was one."""
        key = (kind, match, value)
        was_exact = self._exact.pop(key, None) is not None
        return self._scanned.pop(key, None) is not None or was_exact

    def entries(self) -> list[BlacklistEntry]:
        """Return the entries that have not expired."""
        self.remove_expired()
        return [*self._exact.values(), *(scanned.entry for scanned in self._scanned.values())]

    def find(self, *, user: str | None, client: str, address: str) -> BlacklistEntry | None:
        """Return an entry that refuses this client, or None."""
        now_ms = self._clock.now_ms()
        subjects = (("address", address), ("client", client), ("user", user))
        for kind, subject in subjects:
            if subject is None:
                continue
            entry = self._exact.get((kind, "exact", subject))
            if entry is not None and not entry.is_expired(now_ms):
                return entry
        for scanned in self._scanned.values():
            entry = scanned.entry
            subject = dict(subjects)[entry.kind]
            if subject is None or entry.is_expired(now_ms):
                continue
            if scanned.matches(subject):
                return entry
        return None

    def remove_expired(self) -> list[BlacklistEntry]:
        """Remove and return the entries that have expired."""
        now_ms = self._clock.now_ms()
        expired = [entry for entry in self._exact.values() if entry.is_expired(now_ms)]
        expired += [
            scanned.entry for scanned in self._scanned.values() if scanned.entry.is_expired(now_ms)
        ]
        for entry in expired:
            self.remove(*entry.key)
        return expired


def encode_entry(entry: BlacklistEntry) -> bytes:
    return msgspec.json.encode(entry)


def decode_entry(data: bytes) -> BlacklistEntry:
    """Return a stored entry; raise `ValueError` for one that is damaged."""
    try:
        return msgspec.json.decode(data, type=BlacklistEntry)
    except msgspec.MsgspecError as error:
        raise ValueError(f"a blacklist entry cannot be decoded: {error}") from error


def _check(entry: BlacklistEntry) -> None:
    if not entry.value:
        raise BadRequestError("a blacklist entry needs a value")
    if len(entry.value) > SUBJECT_MAX:
        raise BadRequestError(
            f"the value has {len(entry.value)} characters; at most {SUBJECT_MAX} are allowed"
        )
    if entry.match == "cidr":
        _check_network(entry)
    elif entry.match == "regex":
        _check_pattern(entry.value)
    elif entry.kind == "address":
        try:
            ip_address(entry.value)
        except ValueError as error:
            raise BadRequestError(f"{entry.value!r} is not an address: {error}") from error


def _check_network(entry: BlacklistEntry) -> None:
    if entry.kind != "address":
        raise BadRequestError(f"cidr needs the kind address, not {entry.kind}")
    try:
        ip_network(entry.value, strict=False)
    except ValueError as error:
        raise BadRequestError(f"{entry.value!r} is not a network: {error}") from error


def _check_pattern(pattern: str) -> None:
    if len(pattern) > PATTERN_MAX:
        raise BadRequestError(
            f"the regular expression has {len(pattern)} characters; at most {PATTERN_MAX} are "
            "allowed"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadRequestError(f"{pattern!r} is not a regular expression: {error}") from error


def _check_space(count: int, limit: int) -> None:
    if count >= limit:
        raise BadRequestError(
            f"the blacklist has {count} entries of this kind, the limit; remove some first"
        )
