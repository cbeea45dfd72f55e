"""What `penstock cluster` asks of the nodes: calls, rows, and the numbers that it shows.

The interface for the command line; other packages import from `penstock.meta`.
"""

from penstock.meta.client_api.local_reads import ANY_AGE, STALENESS_MS
from penstock.meta.controller.decisions import Load, load_of, replica_nodes, short_of_room
from penstock.meta.controller.decommission import last_replica_shards, listed, lost_shards
from penstock.meta.controller.reassignment_plans import plan_balance, plan_to
from penstock.meta.controller.replica_status import (
    ReplicaProblem,
    TopicReplicas,
    replicated_topics,
)
from penstock.meta.proto import meta_pb2
from penstock.meta.remote.connection import MetaConnection
from penstock.meta.remote.groups import RemoteRows
from penstock.meta.state.constants import DRAINING, INTERNAL_LISTENER, ONLINE, REASSIGNMENT_ROLE
from penstock.meta.state.metadata.rows import MEMBERS, NODES, SHARDS

__all__ = [
    "ANY_AGE",
    "DRAINING",
    "INTERNAL_LISTENER",
    "MEMBERS",
    "NODES",
    "ONLINE",
    "REASSIGNMENT_ROLE",
    "SHARDS",
    "STALENESS_MS",
    "Load",
    "MetaConnection",
    "RemoteRows",
    "ReplicaProblem",
    "TopicReplicas",
    "last_replica_shards",
    "listed",
    "load_of",
    "lost_shards",
    "meta_pb2",
    "plan_balance",
    "plan_to",
    "replica_nodes",
    "replicated_topics",
    "short_of_room",
]
