"""`penstock cluster add`: refusals at once, a token, progress, a bounded wait."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path

import pytest
from tests.free_ports import free_ports
from tests.meta.raft.cluster_in_process import wait_until
from tests.meta.raft.test_serve_cluster import Servers
from typer.testing import CliRunner

from penstock.cli import build
from penstock.errors import BadRequestError, DeadlineError, NotSupportedError
from penstock.remote.server.node_server import Server
from penstock.settings import SERVE, merge_settings

pytest.importorskip("penstock._native", reason="a cluster needs the extension")


def run(*arguments: str) -> tuple[str, BaseException | None]:
    result = CliRunner().invoke(build(), ["cluster", "add", *arguments])
    return result.output, result.exception


def test_a_single_node_and_what_is_not_an_address_are_refused_at_once(tmp_path: Path) -> None:
    settings = merge_settings(
        SERVE, {"server.port": 0, "server.http_port": 0, "kafka.enabled": False}
    )
    with Server(str(tmp_path / "data"), settings) as server:
        where = f"127.0.0.1:{server.port}"
        for wrong in ("x", "x:", ":1", "x:y", "x:0", "x:70000"):
            _, error = run("2", wrong, "-s", where)
            assert isinstance(error, BadRequestError)
            assert f"{wrong!r} is not an address: write HOST:PORT" in str(error)
        _, error = run("2", "127.0.0.1:1", "-s", where)
        assert isinstance(error, NotSupportedError)
        assert "restart it with node.peers" in str(error)


@pytest.mark.timeout(240)
def test_a_node_joins_with_the_settings_that_the_command_prints(tmp_path: Path) -> None:
    servers = Servers(tmp_path)
    servers.peers = servers.peers[:1]
    internal = f"127.0.0.1:{free_ports(1)[0]}"
    try:
        servers.start(1, "node.secret=")
        wait_until(lambda: "voters 1" in servers.cluster("status"), "a cluster of one")
        said, error = run("2", internal, "-s", servers.addresses[1], "--wait", "0.5")
        assert isinstance(error, DeadlineError)
        assert "node 2 has not asked to join yet after 0.5 s" in str(error)
        assert "the server cannot reach" in said
        found = re.search(r"start it with: (.*)", said)
        assert found is not None
        pairs = [one for one in shlex.split(found[1]) if one != "--set"]
        assert pairs[2].startswith("node.join_token=2.")
        # Without the token it is refused, and says what to do.
        servers.start(2, "node.secret=", *pairs[:2])
        log = tmp_path / "2.log"
        wait_until(lambda: f"penstock cluster add 2 {internal}" in log.read_text(), "a refusal")
        servers.stop(2)
        outcome: list[tuple[str, BaseException | None]] = []
        waiting = threading.Thread(
            target=lambda: outcome.append(run("2", internal, "-s", servers.addresses[1]))
        )
        waiting.start()
        servers.start(2, "node.secret=", *pairs)
        waiting.join(120)
        assert "node 2 votes in all groups" in outcome[0][0]
    finally:
        servers.close()
