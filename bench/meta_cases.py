"""A node of the meta service in a process of its own, for `bench/meta.py`.

usage: python -m bench.meta_cases DIRECTORY NODE PEERS RPC_PORT; without peers a single node
"""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc

from penstock.meta.raft.client import RaftMetaClient
from penstock.meta.raft.members.bootstrap import Place
from penstock.meta.service import MetaService, meta_handlers
from penstock.meta.standalone.client import StandaloneMetaClient


def open_service(directory: str, node: int, peers: str) -> MetaService:
    if not peers:
        return StandaloneMetaClient.open(directory).service()
    # With a secret a wiped node joins again without a token.
    place = Place(
        node_id=node, peers=tuple(peers.split(",")), secrets=("the secret of the benchmark",)
    )
    return RaftMetaClient.open(directory, place).service()


def main() -> None:
    directory, node, peers, port = sys.argv[1:]
    service = open_service(directory, int(node), peers)
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 16 << 20)]
    server = grpc.server(ThreadPoolExecutor(64), options=options)
    server.add_generic_rpc_handlers((meta_handlers(service),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
