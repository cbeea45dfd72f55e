"""Serves Kafka clients from a process that can be killed: python serving_process.py DIR PORT."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from penstock.remote.server.node_server import without_hypothesis

with without_hypothesis():  # as a server does: it starts in three quarters of the time
    from tests.brokers.kafka.running import running


def main() -> None:
    path, port = sys.argv[1:]
    options = {"port": int(port), "transaction_check_interval_ms": 100}
    with running(Path(path), options) as server:
        sys.stdout.write(f"{server.server.port}\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
