"""An offset on its way in, as commands of the offset machine carry it."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, Struct

from penstock.meta.state.model import Count, Name, Signed

METADATA_SIZE_MAX: Final = 4_096
"""Characters of the text that a consumer may leave beside an offset; Kafka's default."""


class NewOffset(Struct, frozen=True, array_like=True):
    """An offset that is set by a reset or a transaction; the machine gives it its pair."""

    shard: Name
    offset: Count
    leader_epoch: Signed = -1
    metadata: Annotated[str, Meta(max_length=METADATA_SIZE_MAX)] = ""
