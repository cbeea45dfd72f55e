"""A node of the meta service in a process of its own, behind gRPC: for tests that kill it.

usage: meta_process.py DIRECTORY NODE PEERS RPC_PORT
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.raft.members.bootstrap import Place
from penstock.meta.service import meta_handlers
from penstock.meta.storage.groups import LogLimits
from penstock.platform.log import configure

SECRET = "the secret of all processes"


def main() -> None:
    directory, node, peers, port = sys.argv[1:]
    configure(level="info")
    place = Place(
        node_id=int(node), peers=tuple(peers.split(",")), offset_groups=2, secrets=(SECRET,)
    )
    # A short log: followers that were away need snapshots.
    limits = LogLimits(entries_max=200, entries_kept=50)
    client = RaftMetaClient.open(directory, place, limits=limits)
    server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((meta_handlers(client.service()),))
    assert server.add_insecure_port(f"127.0.0.1:{port}") == int(port)
    server.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
