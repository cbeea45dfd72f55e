"""The gRPC server of a node: its ports, threads and bounds."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import grpc

from penstock.platform.addresses import find_problem, resolve, with_port
from penstock.platform.calls.grpc import WaitingPools, service_handlers
from penstock.platform.calls.parked_calls import Resumer, WaitingCalls
from penstock.platform.calls.waiting_calls import WaitingThreads
from penstock.remote import storage_pb2 as pb
from penstock.remote.server.call_threads import CallThreads
from penstock.remote.server.read_budget import ReadLimits
from penstock.remote.server.served_backend import ServedBackend
from penstock.remote.server.service import StorageService
from penstock.remote.wire.call import SERVICE
from penstock.remote.wire.errors import failure_of
from penstock.remote.wire.records import MESSAGE_SIZE_MAX

THREADS_MAX: Final = 256
STREAMS_MAX: Final = 4_096
"""Streams that follow a topic or the metadata; as many calls with one reply that wait."""
PER_CLIENT_MAX: Final = 256
"""Streams of one connection."""
STREAM_THREADS_MAX: Final = 64
WAIT_THREADS_MAX: Final = 64
"""Threads for such calls while they read and send: none while they wait."""
WRITE_STREAMS_MAX: Final = 256
WRITE_STREAMS_PER_CLIENT_MAX: Final = 64
"""Streams of writes, each of which has a thread."""
KEEPALIVE_MS: Final = 60_000
KEEPALIVE_TIMEOUT_MS: Final = 20_000


def waiting_pools() -> WaitingPools:
    """Return the bounds and threads of a server for calls that wait."""
    resumer = Resumer()
    return WaitingPools(
        WaitingCalls(
            CallThreads(STREAM_THREADS_MAX, "penstock-rpc-stream"),
            resumer,
            STREAMS_MAX,
            PER_CLIENT_MAX,
        ),
        WaitingCalls(
            CallThreads(WAIT_THREADS_MAX, "penstock-rpc-wait"),
            resumer,
            STREAMS_MAX,
            STREAMS_MAX,
        ),
        WaitingThreads(WRITE_STREAMS_MAX, WRITE_STREAMS_PER_CLIENT_MAX),
    )


def start_server(
    backend: ServedBackend,
    host: str,
    port: int,
    *,
    stopping: threading.Event,
    reading: ReadLimits | None = None,
    also: Sequence[grpc.GenericRpcHandler] = (),
    threads: CallThreads | None = None,
    pools: WaitingPools | None = None,
) -> tuple[grpc.Server, int]:
    """Serve `backend`, and `also` other services; return the server and its port (chosen when
    `port` is 0). Set `stopping` before the server is stopped.

    Raises `SetupError` when the port is taken, or `host` is not an address of this machine.
    """
    resolve(host, port)  # reports an unknown host name, which gRPC does not
    server = grpc.server(
        threads if threads is not None else CallThreads(THREADS_MAX),
        options=[
            ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
            ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
            ("grpc.so_reuseport", 0),
            # The streams of clients that vanished end.
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ],
    )
    service = StorageService(backend, stopping, reading)
    handlers = service_handlers(pb, SERVICE, service, failure_of, pools)
    server.add_generic_rpc_handlers((handlers, *also))
    try:
        bound = server.add_insecure_port(with_port(host, port))
    except RuntimeError:
        bound = 0
    if bound == 0:
        raise find_problem(host, port, choose="another port")
    server.start()
    return server, bound
