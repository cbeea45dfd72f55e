"""The clients of a log, joined: what single, Raft and remote nodes have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

from penstock.meta.client_api.metadata_client import LogMetadataClient
from penstock.meta.client_api.metadata_proposer import MetadataGroup
from penstock.meta.client_api.offset_client import LogOffsetClient, OffsetGroup
from penstock.meta.client_api.transaction_client import LogTransactionClient
from penstock.meta.state.constants import PLUGIN_STORAGE_ROLE
from penstock.meta.watch import Watchers
from penstock.platform.clock import Clock


class LogClient(LogMetadataClient, LogOffsetClient, LogTransactionClient):
    def __init__(
        self,
        metadata: MetadataGroup,
        offsets: Sequence[OffsetGroup],
        watchers: Watchers,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
    ) -> None:
        LogMetadataClient.__init__(
            self,
            metadata,
            watchers,
            node_id=node_id,
            cluster_id=cluster_id,
            clock=clock,
            entropy=entropy,
        )
        LogOffsetClient.__init__(self, offsets, node_id=node_id, clock=clock)
        LogTransactionClient.__init__(self, offsets, node_id=node_id, clock=clock)


class ClusterClient(LogClient):
    """A client that may send a request again, and that registers its node."""

    _roles: tuple[str, ...] = (PLUGIN_STORAGE_ROLE,)

    def __init__(
        self,
        metadata: MetadataGroup,
        offsets: Sequence[OffsetGroup],
        watchers: Watchers,
        *,
        node_id: int,
        cluster_id: str,
        clock: Clock,
        entropy: Callable[[int], bytes],
        store_id: str,
    ) -> None:
        """`store_id` says which records this node has; empty: it keeps none."""
        super().__init__(
            metadata,
            offsets,
            watchers,
            node_id=node_id,
            cluster_id=cluster_id,
            clock=clock,
            entropy=entropy,
        )
        self._store_id: Final = store_id
        self._nonce: Final = entropy(8).hex()
        """Identifies this run of the node."""
        self._listeners: Final[dict[str, str]] = {}
        self._registering: Final = threading.Lock()
        self._is_registered = False
        self._requests = 0
        self._counting: Final = threading.Lock()

    def _request_id(self, given: str = "") -> str:
        if given:
            return given
        with self._counting:
            self._requests += 1
            return f"{self._nonce}-{self._requests}"

    @property
    def _address(self) -> str:
        """Where the other nodes reach this one; empty: they do not."""
        return ""

    def _register(self) -> None:
        # One at a time: an older registration that arrived last would hide the listeners of this
        # node from the others until it notices.
        with self._registering:
            self.register_node(
                self._address,
                listeners=self._listeners,
                roles=self._roles,
                boot_id=self._nonce,
                store_id=self._store_id,
            )
            self._is_registered = True
