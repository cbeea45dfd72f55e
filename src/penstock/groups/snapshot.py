"""A group with all of its members, as it is kept over a restart or a move of its coordinator.

Stored as a MessagePack array, compressed; fields are only appended.
"""

from __future__ import annotations

import zlib
from typing import Final

from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder, Encoder

from penstock.groups.members import MemberTable
from penstock.groups.model import Member

SIZE_MAX: Final = 256 << 10
"""Bytes of a snapshot; larger groups are not kept, and their members join again."""
_PLAIN_SIZE_MAX: Final = 64 << 20
"""Bytes that a snapshot may take when it is decompressed."""


class MemberSnapshot(Struct, frozen=True, array_like=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupSnapshot(Struct, frozen=True, array_like=True):
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[MemberSnapshot, ...]


_encoder: Final = Encoder()
_decoder: Final = Decoder(GroupSnapshot)


def snapshot_of(generation: int, members: MemberTable) -> GroupSnapshot:
    return GroupSnapshot(
        generation=generation,
        protocol_type=members.protocol_type or "",
        protocol=members.protocol or "",
        leader=members.leader or "",
        members=tuple(
            MemberSnapshot(
                member_id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=member.protocols,
                assignment=member.assignment,
            )
            for member in members
        ),
    )


def member_of(kept: MemberSnapshot, *, deadline_ms: int, protocol_type: str) -> Member:
    return Member(
        member_id=kept.member_id,
        instance_id=kept.instance_id,
        client_id=kept.client_id,
        client_host=kept.client_host,
        session_timeout_ms=kept.session_timeout_ms,
        rebalance_timeout_ms=kept.rebalance_timeout_ms,
        protocol_type=protocol_type,
        protocols=kept.protocols,
        deadline_ms=deadline_ms,
        assignment=kept.assignment,
        is_new=False,
    )


def encode_snapshot(snapshot: GroupSnapshot) -> bytes:
    return zlib.compress(_encoder.encode(snapshot), 1)


def decode_snapshot(data: bytes) -> GroupSnapshot | None:
    """Return None for bytes that are not a snapshot: its members then join again."""
    inflating = zlib.decompressobj()
    try:
        plain = inflating.decompress(data, _PLAIN_SIZE_MAX)
        return _decoder.decode(plain) if inflating.eof else None
    except (zlib.error, MsgspecError):
        return None
