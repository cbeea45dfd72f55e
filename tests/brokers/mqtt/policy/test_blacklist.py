"""The blacklist: kinds of entries, expiry, bounds."""

from __future__ import annotations

from typing import Literal

import pytest

from penstock.brokers.mqtt.policy import blacklist
from penstock.brokers.mqtt.policy.blacklist import (
    Blacklist,
    BlacklistEntry,
    decode_entry,
    encode_entry,
)
from penstock.errors import BadRequestError
from penstock.testing.manual_clock import ManualClock

Kind = Literal["user", "client", "address"]
Match = Literal["exact", "regex", "cidr"]


def entry(kind: Kind, match: Match, value: str, expires_at_ms: int | None = None) -> BlacklistEntry:
    return BlacklistEntry(kind=kind, match=match, value=value, expires_at_ms=expires_at_ms)


@pytest.mark.parametrize(
    ("kind", "match", "value"),
    [
        ("user", "exact", "alice"),
        ("client", "exact", "c-1"),
        ("address", "exact", "10.1.2.3"),
        ("client", "regex", r"^c-\d$"),
        ("address", "cidr", "10.0.0.0/8"),
    ],
)
def test_each_kind_of_entry_refuses_its_client(kind: Kind, match: Match, value: str) -> None:
    listed = Blacklist(ManualClock(), [entry(kind, match, value)])
    assert listed.find(user="alice", client="c-1", address="10.1.2.3") is not None
    assert listed.find(user="bob", client="c-12", address="11.1.2.3") is None
    assert listed.find(user=None, client="", address="") is None


def test_an_entry_ends_when_it_expires() -> None:
    clock = ManualClock()
    listed = Blacklist(clock, [entry("user", "exact", "alice", clock.now_ms() + 1000)])
    assert listed.find(user="alice", client="c", address="") is not None
    clock.advance(2)
    assert listed.find(user="alice", client="c", address="") is None
    assert listed.entries() == []


def test_an_entry_is_removed_by_its_key() -> None:
    listed = Blacklist(ManualClock(), [entry("user", "exact", "alice")])
    assert not listed.remove("user", "regex", "alice")
    assert listed.remove("user", "exact", "alice")
    assert len(listed) == 0


@pytest.mark.parametrize(
    ("kind", "match", "value"),
    [
        ("user", "regex", "("),
        ("user", "regex", "x" * 300),
        ("user", "cidr", "10.0.0.0/8"),
        ("address", "cidr", "10.0.0.0/99"),
        ("address", "exact", "ten"),
        ("user", "exact", ""),
    ],
)
def test_an_entry_that_cannot_work_is_refused(kind: Kind, match: Match, value: str) -> None:
    with pytest.raises(BadRequestError):
        Blacklist(ManualClock()).add(entry(kind, match, value))


def test_the_number_of_scanned_entries_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blacklist, "SCANNED_MAX", 2)
    listed = Blacklist(ManualClock(), [entry("user", "regex", "a"), entry("user", "regex", "b")])
    listed.add(entry("user", "regex", "b"))
    with pytest.raises(BadRequestError, match="the limit"):
        listed.add(entry("user", "regex", "c"))


def test_an_entry_survives_its_stored_form() -> None:
    stored = entry("address", "cidr", "10.0.0.0/8", 5)
    assert decode_entry(encode_entry(stored)) == stored
    with pytest.raises(ValueError, match="cannot be decoded"):
        decode_entry(b"{")
