"""The replicated logs of a cluster: several Raft groups in one process, on one RocksDB.

    client ──▶ RaftNode (a thread) ──▶ MultiRaft (a step function) ──▶ RaftGroup ──▶ RaftCore
                    │                        │ one synced write a turn
                 Transport                Database

`MultiRaft` and all below it read no clock and open no socket: the simulation in the tests drives
the same code as a server does.

Other packages import from here; a name is loaded with its first use.
"""

from typing import TYPE_CHECKING

from penstock.meta.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.meta.raft.bootstrap import Place, parse_peers
    from penstock.meta.raft.client import RaftMetaClient
    from penstock.meta.raft.leader_wait import StartEvent, StartWait
    from penstock.meta.raft.load import require_core
    from penstock.meta.raft.network.credentials import draw_incarnation
    from penstock.meta.raft.recovery import Outlook, look_ahead, recover

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__,
        {
            "bootstrap": "Place parse_peers",
            "client": "Place RaftMetaClient",
            "leader_wait": "StartEvent StartWait",
            "load": "require_core",
            "network.credentials": "draw_incarnation",
            "recovery": "Outlook look_ahead recover",
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
