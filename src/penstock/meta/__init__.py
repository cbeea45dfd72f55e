"""What the nodes agree on: topics, shards, segments, nodes, leases and consumers' offsets.

    MetaClient ──▶ StandaloneLog (one node) or Raft (cluster) ──▶ state machines ──▶ RocksDB `meta`

Everything that changes is a command in a log; the state machines in `meta.state` are pure
functions over keys and values, so that every node which applies the same log holds the same state.

Other packages import from here, and from these interfaces; an import contract in `pyproject.toml`
protects all other modules. A name is loaded with its first use.

    meta.events     changes of the metadata, as a watch delivers them
    meta.raft       a node of a cluster: its start, its recovery
    meta.storage    the database, and the rows of offsets in it
    meta.offline    reads of a node's directory without the node
    meta.admin      what `penstock cluster` asks of the nodes
"""

from typing import TYPE_CHECKING

from penstock.platform.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.meta.client import (
        ClusterNode,
        GroupInfo,
        InSyncProposal,
        LeaderOutcome,
        LeadingNode,
        ListenerAnnouncer,
        MetaClient,
        MetadataClient,
        NewTopic,
        OffsetClient,
        PeerNetwork,
        ReplicaClient,
        ReplicaMove,
        StartProof,
        Takeover,
    )
    from penstock.meta.client_api.transaction_client import TransactionClient
    from penstock.meta.controller.decisions import STORAGE_LISTENER, abandoned_shards
    from penstock.meta.group_coordinators import KAFKA_LISTENER, GroupCoordinators
    from penstock.meta.identifiers import ULID_RANDOM_SIZE, make_ulid, parse_ulid
    from penstock.meta.rejections import check_text
    from penstock.meta.remote.client import RemoteMetaClient
    from penstock.meta.remote.data_node import DataNodeMetaClient
    from penstock.meta.remote.data_port import DataListen
    from penstock.meta.service import meta_handlers
    from penstock.meta.standalone.client import StandaloneMetaClient
    from penstock.meta.state.constants import (
        CLEANUPS,
        DEFAULT_NAMESPACE,
        EPOCH_BUMP_ROLE,
        FLUSH_MODES,
        LOST,
        OFFLINE,
        PARTITIONERS,
        QUEUE_ALIASES,
        QUEUE_KINDS,
        RACK,
        STORAGE_ALIASES,
        STORAGE_LEVELS,
        STORAGE_TYPES,
        UPLOADERS,
        is_plugin_storage,
    )
    from penstock.meta.state.metadata.commands import Election, ReplicaOutcome
    from penstock.meta.state.metadata.replica_sets import (
        is_replicated,
        min_insync_of,
        shard_min_insync,
    )
    from penstock.meta.state.model import (
        INT_MAX,
        PARTITIONS_MAX,
        UNLIMITED,
        Lease,
        Node,
        Segment,
        Shard,
        TieringPolicy,
        Topic,
        TopicConfig,
    )
    from penstock.meta.state.offsets.commands import (
        ROWS_MAX,
        GroupName,
        GroupOffsets,
        NewGroupOffsets,
        OffsetEntry,
    )
    from penstock.meta.state.offsets.entries import METADATA_SIZE_MAX, NewOffset
    from penstock.meta.state.offsets.rows import CommittedOffset
    from penstock.meta.state.transactions.commands import (
        EPOCH_MAX,
        AbortedRange,
        BeginProducer,
        Decide,
        Enlist,
        Finish,
        ForgetAborted,
        ForgetTransactions,
        StagedOffsets,
        StageOffsets,
        TransactionCommand,
        TransactionPartition,
        TransactionState,
    )
    from penstock.meta.watch import Update, Watch

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__,
        {
            "client": (
                "ClusterNode GroupInfo InSyncProposal LeaderOutcome LeadingNode "
                "ListenerAnnouncer MetaClient MetadataClient NewTopic OffsetClient "
                "PeerNetwork ReplicaClient ReplicaMove StartProof Takeover"
            ),
            "client_api.transaction_client": "TransactionClient",
            "controller.decisions": "STORAGE_LISTENER abandoned_shards",
            "group_coordinators": "KAFKA_LISTENER GroupCoordinators",
            "identifiers": "ULID_RANDOM_SIZE make_ulid parse_ulid",
            "rejections": "check_text",
            "remote.client": "RemoteMetaClient",
            "remote.data_node": "DataNodeMetaClient",
            "remote.data_port": "DataListen",
            "service": "meta_handlers",
            "standalone.client": "StandaloneMetaClient",
            "state.constants": (
                "CLEANUPS DEFAULT_NAMESPACE EPOCH_BUMP_ROLE FLUSH_MODES LOST OFFLINE PARTITIONERS "
                "QUEUE_ALIASES QUEUE_KINDS RACK STORAGE_ALIASES STORAGE_LEVELS STORAGE_TYPES "
                "UPLOADERS is_plugin_storage"
            ),
            "state.metadata.commands": "Election ReplicaOutcome",
            "state.metadata.replica_sets": "is_replicated min_insync_of shard_min_insync",
            "state.model": (
                "INT_MAX PARTITIONS_MAX UNLIMITED Lease Node Segment Shard "
                "TieringPolicy Topic TopicConfig"
            ),
            "state.offsets.commands": (
                "ROWS_MAX GroupName GroupOffsets NewGroupOffsets OffsetEntry"
            ),
            "state.offsets.entries": "METADATA_SIZE_MAX NewOffset",
            "state.offsets.rows": "CommittedOffset",
            "state.transactions.commands": (
                "EPOCH_MAX AbortedRange BeginProducer Decide Enlist Finish ForgetAborted "
                "ForgetTransactions StageOffsets StagedOffsets TransactionCommand "
                "TransactionPartition TransactionState"
            ),
            "watch": "Update Watch",
        },
    )

__all__ = [
    "CLEANUPS",
    "DEFAULT_NAMESPACE",
    "EPOCH_BUMP_ROLE",
    "EPOCH_MAX",
    "FLUSH_MODES",
    "INT_MAX",
    "KAFKA_LISTENER",
    "LOST",
    "METADATA_SIZE_MAX",
    "OFFLINE",
    "PARTITIONERS",
    "PARTITIONS_MAX",
    "QUEUE_ALIASES",
    "QUEUE_KINDS",
    "RACK",
    "ROWS_MAX",
    "STORAGE_ALIASES",
    "STORAGE_LEVELS",
    "STORAGE_LISTENER",
    "STORAGE_TYPES",
    "ULID_RANDOM_SIZE",
    "UNLIMITED",
    "UPLOADERS",
    "AbortedRange",
    "BeginProducer",
    "ClusterNode",
    "CommittedOffset",
    "DataListen",
    "DataNodeMetaClient",
    "Decide",
    "Election",
    "Enlist",
    "Finish",
    "ForgetAborted",
    "ForgetTransactions",
    "GroupCoordinators",
    "GroupInfo",
    "GroupName",
    "GroupOffsets",
    "InSyncProposal",
    "LeaderOutcome",
    "LeadingNode",
    "Lease",
    "ListenerAnnouncer",
    "MetaClient",
    "MetadataClient",
    "NewGroupOffsets",
    "NewOffset",
    "NewTopic",
    "Node",
    "OffsetClient",
    "OffsetEntry",
    "PeerNetwork",
    "RemoteMetaClient",
    "ReplicaClient",
    "ReplicaMove",
    "ReplicaOutcome",
    "Segment",
    "Shard",
    "StageOffsets",
    "StagedOffsets",
    "StandaloneMetaClient",
    "StartProof",
    "Takeover",
    "TieringPolicy",
    "Topic",
    "TopicConfig",
    "TransactionClient",
    "TransactionCommand",
    "TransactionPartition",
    "TransactionState",
    "Update",
    "Watch",
    "abandoned_shards",
    "admin",
    "check_text",
    "events",
    "is_plugin_storage",
    "is_replicated",
    "make_ulid",
    "meta_handlers",
    "min_insync_of",
    "offline",
    "parse_ulid",
    "raft",
    "shard_min_insync",
    "storage",
]
