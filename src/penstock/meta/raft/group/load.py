"""A group as its directory holds it: created, opened again, or left by a single node.

A new group starts with its log truncated at entry 1: a node that joins later is always sent the
state, for the entries alone do not name the first members. A log that a
single node began has no such cut; it gets one as soon as its first entry is applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from penstock.errors import SetupError
from penstock.meta.raft.group.snapshots import delete_generations
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.meta.storage.groups import GroupName, log_corruption

try:
    from penstock._native import RaftCore
except ImportError:  # pragma: no cover - depends on the installation
    _core_class: type | None = None
else:
    _core_class = RaftCore

CoreConfiguration = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], bool]

_FOUNDED: Final = (1, 1)
"""Index and term that a bootstrapped group begins with."""
_GENERATION_END: Final = 0xFFFFFFFF


class RaftTiming(Struct, frozen=True):
    """Ticks; how long one is, is the driver's business."""

    election_ticks: int = 20
    heartbeat_ticks: int = 3
    deadline_ticks: int = 200
    """After so many a proposal or a read is given up."""


class Loaded(Struct):
    """What a directory holds of a group."""

    hard_state: tuple[int, int, int]
    configuration: fmt.Configuration
    cut: tuple[int, int]
    rows: list[tuple[int, bytes]]
    applied: tuple[int, int]
    generation: int


def require_core() -> None:
    """Raise `SetupError` when the extension is missing: a cluster cannot do without it."""
    if _core_class is None:
        raise SetupError(
            "a cluster needs the native extension, which is not installed: install Rust and then "
            "penstock again, or run a single node (no `peers` in the settings)"
        )


def initial_rows(group: GroupName, voters: tuple[int, ...]) -> Batch:
    """Return the rows of a group that begins with these voters; () for one that is to join."""
    index, term = _FOUNDED if voters else (0, 0)
    number, family = group.number, group.log_family
    configuration = fmt.Configuration(voters=voters)
    batch = Batch()
    batch.put(family, fmt.configuration_key(number), fmt.encode_configuration(configuration))
    batch.put(family, fmt.hard_state_key(number), fmt.HARD_STATE.pack(term, 0, index))
    if voters:
        batch.put(family, fmt.cut_key(number), fmt.CUT.pack(index, term))
        applied = fmt.APPLIED.pack(index, term, fmt.FIRST_GENERATION)
        batch.put(group.state_family, fmt.applied_key(number), applied)
    return batch


def is_bootstrapped(database: Database, group: GroupName) -> bool:
    return database.get(group.log_family, fmt.hard_state_key(group.number)) is not None


def load_group(database: Database, group: GroupName) -> Loaded:
    """Read a group, and remove the rows of an incomplete snapshot."""
    number, family = group.number, group.log_family
    hard_row = database.get(family, fmt.hard_state_key(number))
    configuration_row = database.get(family, fmt.configuration_key(number))
    if hard_row is None or configuration_row is None:
        raise log_corruption(database, group, "hard state or configuration is missing")
    term, vote, commit = fmt.HARD_STATE.unpack(hard_row)
    cut_row = database.get(family, fmt.cut_key(number))
    cut_index, cut_term = (0, 0) if cut_row is None else fmt.CUT.unpack(cut_row)
    applied_row = database.get(group.state_family, fmt.applied_key(number))
    applied, applied_term, generation = 0, 0, fmt.FIRST_GENERATION
    if applied_row is not None:
        applied, applied_term, generation = fmt.APPLIED.unpack(applied_row)
    rows: list[tuple[int, bytes]] = []
    last = cut_index
    start, end = fmt.entry_key(number, cut_index + 1), fmt.entries_end(number)
    for key, row in database.scan(family, start, end):
        index = fmt.entry_index(key)
        if index != last + 1:
            raise log_corruption(database, group, f"the entry after {last} is missing")
        last = index
        rows.append((index, row))
        term = max(term, fmt.ENTRY.unpack_from(row)[0])
    if not cut_index <= applied <= last:
        raise log_corruption(
            database, group, f"entry {applied} is applied, but the log is {cut_index} to {last}"
        )
    _remove_leftovers(database, group, generation)
    # The last process may have left all of this in the page cache only.
    database.sync()
    return Loaded(
        hard_state=(max(term, cut_term), vote, min(max(commit, applied), last)),
        configuration=fmt.decode_configuration(configuration_row),
        cut=(cut_index, cut_term),
        rows=rows,
        applied=(applied, applied_term),
        generation=generation,
    )


def _remove_leftovers(database: Database, group: GroupName, generation: int) -> None:
    if generation > fmt.FIRST_GENERATION:
        delete_generations(database, group, fmt.FIRST_GENERATION, generation)
    delete_generations(database, group, generation + 1, _GENERATION_END)


def configuration_of_core(parts: CoreConfiguration) -> fmt.Configuration:
    voters, learners, outgoing, following, auto_leave = parts
    return fmt.Configuration(
        voters=tuple(sorted(voters)),
        learners=tuple(sorted(learners)),
        voters_outgoing=tuple(sorted(outgoing)),
        learners_next=tuple(sorted(following)),
        auto_leave=auto_leave,
    )


def configuration_for_core(configuration: fmt.Configuration) -> CoreConfiguration:
    return (
        list(configuration.voters),
        list(configuration.learners),
        list(configuration.voters_outgoing),
        list(configuration.learners_next),
        configuration.auto_leave,
    )


_TIMEOUT_NOW: Final = 14


def timeout_now(to: int, sender: int, term: int) -> bytes:
    """Return the message of Raft by which a leader lets a follower campaign, as the core encodes
    it: type, to, from, term."""
    fields = ((1, _TIMEOUT_NOW), (2, to), (3, sender), (4, term))
    return b"".join(_varint(number << 3) + _varint(value) for number, value in fields)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
