"""Replication: copies of a shard on several nodes, and the commit offset that they agree on.

    metadata ──▶ Assignment (replicas, in-sync set, leader, epochs) ──▶ ReplicaCore
    leader     appends, answers fetches, counts replicas, advances the commit offset
    followers  fetch by offset and epoch, cut what the leader does not have, append its bytes

The metadata group decides who leads a shard and which replicas are in sync; nodes only copy. The
protocol does no input or output of its own and reads no clock: `ReplicaCore` gets messages,
assignments and the time, and fills a list of effects. `runtime.Replicator` runs it in a node, on a
thread of its own, and carries the effects out; the simulation in the tests runs it on simulated
networks, disks and clocks.

A record is committed when every replica of the in-sync set has it, and the set is large enough
(`min_insync`). Only committed records are shown to readers and acknowledged to writers that ask for
all replicas; a leader is elected from replicas that have all of them.
"""

from penstock.engine.replication.assignment import Assignment
from penstock.engine.replication.core import ReplicaCore
from penstock.engine.replication.effects import (
    Assigned,
    Committed,
    Damaged,
    Effect,
    LeaveInSync,
    ProposeInSync,
    Removed,
    Send,
    SyncLog,
)
from penstock.engine.replication.log import ReplicaLog
from penstock.engine.replication.options import CoreOptions
from penstock.engine.replication.runtime.peer_channel import PeerChannel

__all__ = [
    "Assigned",
    "Assignment",
    "Committed",
    "CoreOptions",
    "Damaged",
    "Effect",
    "LeaveInSync",
    "PeerChannel",
    "ProposeInSync",
    "Removed",
    "ReplicaCore",
    "ReplicaLog",
    "Send",
    "SyncLog",
]
