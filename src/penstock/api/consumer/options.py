"""What a consumer can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Final, Literal, TypedDict, Unpack

from msgspec import Struct

from penstock.api.backend import TopicPartition
from penstock.api.consumer.group_client import MAX_POLL_INTERVAL_S, SESSION_TIMEOUT_S, MemberOptions
from penstock.api.consumer.partition_errors import OnError
from penstock.api.timestamps import to_timestamp_ms
from penstock.api.validation import as_seconds, check_name, check_places
from penstock.errors import BadRequestError

Start = Literal["earliest", "latest"] | int | datetime
Assign = Literal["all"] | Iterable[TopicPartition] | None
OnPartitions = Callable[[list[TopicPartition]], None]


class ConsumerArguments(TypedDict, total=False):
    """The keywords of `Store.consumer`."""

    start: Start
    """Where a partition begins that the group has no offset of: "earliest", "latest" or a
    moment."""
    assign: Assign
    """"all" partitions, or pairs of topic and partition, without being a member of the group."""
    on_assigned: OnPartitions | None
    """Called with a list of (topic, partition) by the thread that reads."""
    on_revoked: OnPartitions | None
    """Called before partitions go to another member; they can still be committed."""
    on_lost: OnPartitions | None
    """Called instead of `on_revoked` when other members may have the partitions already."""
    on_error: OnError | None
    """Called with (topic, partition) and the error when a partition cannot be read."""
    session_timeout: float
    """Seconds without a sign of life after which a member counts as gone."""
    max_poll_interval: float
    """Seconds without a read after which a member leaves."""
    instance_id: str | None
    """A static member: its partitions wait for it over a restart, as long as its session."""


class ConsumerOptions(Struct, frozen=True, kw_only=True):
    """The same, checked."""

    start: Start = "earliest"
    assign: Assign = None
    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None
    on_lost: OnPartitions | None = None
    on_error: OnError | None = None
    member: MemberOptions = MemberOptions()


_NAMES: Final = frozenset(ConsumerArguments.__annotations__)


def as_options(**given: Unpack[ConsumerArguments]) -> ConsumerOptions:
    for name in given:
        if name not in _NAMES:
            raise TypeError(f"consumer() got an unexpected keyword argument {name!r}")
    start = given.get("start", "earliest")
    check_start(start)
    instance_id = given.get("instance_id")
    if instance_id is not None:
        check_name(instance_id, "instance_id")
    session = given.get("session_timeout", SESSION_TIMEOUT_S)
    interval = given.get("max_poll_interval", MAX_POLL_INTERVAL_S)
    member = MemberOptions(
        _as_timeout(session, "session_timeout"),
        _as_timeout(interval, "max_poll_interval"),
        instance_id,
    )
    return ConsumerOptions(
        start=start,
        assign=given.get("assign"),
        on_assigned=given.get("on_assigned"),
        on_revoked=given.get("on_revoked"),
        on_lost=given.get("on_lost"),
        on_error=given.get("on_error"),
        member=member,
    )


_TIMEOUT_S_MAX: Final = 2_000_000.0
"""Milliseconds of it fit in 31 bits."""


def _as_timeout(given: object, name: str) -> float:
    seconds = as_seconds(given, name)
    if not 0 < seconds <= _TIMEOUT_S_MAX:
        raise BadRequestError(f"{name} is {seconds:g} s; it must be between 0 and 2,000,000 s")
    return seconds


def check_start(start: object) -> None:
    if not isinstance(start, str):
        to_timestamp_ms(start)
    elif start not in {"earliest", "latest"}:
        raise BadRequestError(f'start must be "earliest", "latest" or a timestamp, got {start!r}')


def assigned_partitions(assign: object, topics: Sequence[str]) -> set[TopicPartition] | None:
    """Return the partitions that are named; None: all."""
    if assign is None or assign == "all":
        return None
    if isinstance(assign, str) or not isinstance(assign, Iterable):
        raise BadRequestError(
            f'assign must be "all" or pairs of topic and partition, got {assign!r}'
        )
    partitions: set[TopicPartition] = set()
    for place in assign:
        check_places({place: 0})
        if place[0] not in topics:
            raise BadRequestError(f"this consumer does not read topic {place[0]!r}")
        partitions.add(place)
    return partitions
