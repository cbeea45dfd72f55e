"""The replicated logs of a cluster: several Raft groups in one process, on one RocksDB.

    client ──▶ RaftNode (a thread) ──▶ MultiRaft (a step function) ──▶ RaftGroup ──▶ RaftCore
                    │                        │ one synced write a turn
                 Transport                Database

`MultiRaft` and all below it read no clock and open no socket: the simulation in the tests drives
the same code as a server does.

    group/    one group: its log, its state machine, snapshots, pending requests
    members/  bootstrap, admission, heartbeats, changes of members, recovery
    network/  the internal port

Other packages import from here; a name is loaded with its first use.
"""

from typing import TYPE_CHECKING

from penstock.platform.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.meta.raft.client import RaftMetaClient
    from penstock.meta.raft.group.load import require_core
    from penstock.meta.raft.members.bootstrap import Place, parse_peers
    from penstock.meta.raft.members.leader_wait import StartEvent, StartWait
    from penstock.meta.raft.members.recovery import Outlook, look_ahead, recover
    from penstock.meta.raft.network.credentials import draw_incarnation

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__,
        {
            "members.bootstrap": "Place parse_peers",
            "client": "Place RaftMetaClient",
            "members.leader_wait": "StartEvent StartWait",
            "group.load": "require_core",
            "network.credentials": "draw_incarnation",
            "members.recovery": "Outlook look_ahead recover",
        },
    )

__all__ = [
    "Outlook",
    "Place",
    "RaftMetaClient",
    "StartEvent",
    "StartWait",
    "draw_incarnation",
    "look_ahead",
    "parse_peers",
    "recover",
    "require_core",
]
