"""A meta service that fails when a test says so: before it did the work, or after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from penstock.errors import DeadlineError, StoreError
from penstock.meta.client import (
    GroupName,
    GroupOffsets,
    NewGroupOffsets,
    NewOffset,
    OffsetEntry,
    StaleEntry,
    Takeover,
)
from penstock.meta.standalone.client import StandaloneMetaClient
from penstock.meta.storage.database import Database
from penstock.testing import ManualClock

ResultT = TypeVar("ResultT")
Failure = Literal["before", "after"] | None


class FlakyMeta(StandaloneMetaClient):
    def __init__(self, database: Database, clock: ManualClock) -> None:
        super().__init__(database, clock=clock)
        self.fails: Failure = None
        self.saves: list[int] = []
        self.error: StoreError = DeadlineError("the meta service did not answer")

    def save_offsets(self, groups: Sequence[GroupOffsets]) -> list[StaleEntry]:
        self.saves.append(sum(len(group.entries) for group in groups))
        return self._flaky(lambda: super(FlakyMeta, self).save_offsets(groups))

    def claim_groups(self, groups: Sequence[GroupName]) -> list[Takeover]:
        return self._flaky(lambda: super(FlakyMeta, self).claim_groups(groups))

    def commit_groups(
        self,
        saves: Sequence[GroupOffsets],
        firsts: Sequence[NewGroupOffsets],
        *,
        node: int | None = None,
    ) -> tuple[list[StaleEntry], list[Takeover]]:
        return self._flaky(lambda: super(FlakyMeta, self).commit_groups(saves, firsts, node=node))

    def compare_and_set_offset(
        self, namespace: str, group: str, entry: OffsetEntry, *, expected: int | None
    ) -> None:
        return self._flaky(
            lambda: super(FlakyMeta, self).compare_and_set_offset(
                namespace, group, entry, expected=expected
            )
        )

    def reset_offsets(
        self, namespace: str, group: str, offsets: Sequence[NewOffset], *, request_id: str = ""
    ) -> int:
        return self._flaky(
            lambda: super(FlakyMeta, self).reset_offsets(
                namespace, group, offsets, request_id=request_id
            )
        )

    def _flaky(self, work: Callable[[], ResultT]) -> ResultT:
        if self.fails == "before":
            raise self.error
        result = work()
        if self.fails == "after":
            raise self.error
        return result
