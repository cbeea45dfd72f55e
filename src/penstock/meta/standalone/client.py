"""The meta service of a single node: `MetaClient` over `StandaloneLog`, in this process.

    client = StandaloneMetaClient.open("data/meta")

The directory is that of a Raft group of one: the node can later become the first of a cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from penstock.errors import StoreError
from penstock.meta.client_api.local_reads import CurrentReads
from penstock.meta.client_api.log_client import LogClient
from penstock.meta.identifiers import ULID_RANDOM_SIZE, make_ulid
from penstock.meta.service import MetaService
from penstock.meta.standalone.group import GroupStatus
from penstock.meta.standalone.log import METADATA, StandaloneLog, offset_group_name, open_identity
from penstock.meta.state.metadata import machine as metadata
from penstock.meta.state.metadata.commands import Answer, Request
from penstock.meta.state.offset_codec import PackedSave, unpack_save
from penstock.meta.state.offsets import machine as offset
from penstock.meta.state.offsets.commands import OffsetAnswer, OffsetRequest
from penstock.meta.state.view import View
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Database, RocksDatabase
from penstock.meta.storage.groups import LogLimits
from penstock.meta.watch import Watchers
from penstock.platform.clock import Clock, SystemClock


class MetadataMachine:
    """`state.metadata` as a log drives it."""

    def decode(self, data: bytes) -> Request:
        return metadata.decode_request(data)

    def apply(self, view: View, request: Request) -> Answer:
        return metadata.apply(view, request)


class OffsetMachine:
    """`state.offset` as a log drives it."""

    def decode(self, data: bytes) -> OffsetRequest | PackedSave:
        return unpack_save(data) or offset.decode_request(data)

    def apply(self, view: View, request: OffsetRequest | PackedSave) -> OffsetAnswer:
        if isinstance(request, PackedSave):
            return offset.apply_packed(view, request)
        return offset.apply(view, request)


class StandaloneMetaClient(LogClient):
    """Use `open`; `close` when done. Safe to use from many threads."""

    def __init__(
        self,
        database: Database,
        *,
        node_id: int = 1,
        offset_groups: int = 1,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        limits: LogLimits | None = None,
    ) -> None:
        """Take over `database`, which `close` closes. `offset_groups` counts for a new one."""
        clock = clock if clock is not None else SystemClock()
        self._database = database
        identity = open_identity(
            database,
            node_id=node_id,
            offset_groups=offset_groups,
            make_cluster_id=lambda: make_ulid(clock.now_ms(), entropy(ULID_RANDOM_SIZE)),
        )
        watchers: Final = Watchers()
        self._standalone_log = StandaloneLog(database, node_id=node_id, limits=limits)
        metadata_group = self._standalone_log.add_group(
            METADATA, MetadataMachine(), on_applied=watchers.enqueue
        )
        groups = [
            self._standalone_log.add_group(offset_group_name(number), OffsetMachine())
            for number in range(identity.offset_groups)
        ]
        super().__init__(
            metadata_group,
            groups,
            watchers,
            node_id=node_id,
            cluster_id=identity.cluster_id,
            clock=clock,
            entropy=entropy,
        )
        self._standalone_log.start()

    @classmethod
    def open(
        cls,
        path: str,
        *,
        node_id: int = 1,
        offset_groups: int = 1,
        clock: Clock | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> StandaloneMetaClient:
        """Open or create the meta service's directory; `LockedError` when another has it open."""
        database = RocksDatabase.open(path, fmt.FAMILIES, clock=clock)
        try:
            return cls(
                database,
                node_id=node_id,
                offset_groups=offset_groups,
                clock=clock,
                entropy=entropy,
            )
        except BaseException:
            database.close()
            raise

    def service(self) -> MetaService:
        """Return the gRPC service over this node."""
        groups = [self._group, *self._offset_groups]
        reads = [CurrentReads(group) for group in groups]
        return MetaService(self, groups, reads, deliver=self._watchers.deliver)

    def leads_metadata(self) -> bool:
        """Return whether this node does what only one node of a cluster must do."""
        return True

    def leader_problem(self) -> str:
        """Alone, a node decides by itself."""
        return ""

    @property
    def failure(self) -> StoreError | None:
        """Why the log has stopped for good, or None."""
        return self._standalone_log.failure

    @property
    def log_status(self) -> list[GroupStatus]:
        return self._standalone_log.status

    def close(self) -> None:
        """Finish what is queued and close the database. Closing twice does nothing."""
        self._standalone_log.close()
        self._database.close()

    def __enter__(self) -> StandaloneMetaClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
