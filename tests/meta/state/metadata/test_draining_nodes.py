"""A node that an operator empties: it drains until the operator says otherwise."""

from __future__ import annotations

import pytest

from penstock.meta.state.constants import (
    DRAINING,
    LASTING_DRAIN_ROLE,
    OFFLINE,
    ONLINE,
    REPLICATION_ROLE,
)
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.machine import apply
from penstock.meta.state.metadata.rows import NODES
from penstock.meta.state.view import MemoryView

ROLES = (REPLICATION_ROLE, LASTING_DRAIN_ROLE)


class Cluster:
    def __init__(self, *, roles: tuple[str, ...] = ROLES) -> None:
        """Register two nodes; `roles` are those of the second."""
        self.view = MemoryView()
        self.register(1, "first-run")
        self.register(2, "first-run", roles)

    def register(self, node: int, run: str, roles: tuple[str, ...] = ROLES) -> None:
        self._run(cmd.RegisterNode(node, "h", {}, roles, run, f"store-{node}"))

    def set_status(self, node: int, status: str) -> None:
        self._run(cmd.SetNodeStatus(node, status))

    def status(self, node: int) -> str:
        row = NODES.get(self.view, node)
        assert row is not None
        return row.status

    def _run(self, command: cmd.Command) -> None:
        answer = apply(self.view, cmd.Request(1, command))
        assert isinstance(answer, cmd.Applied), answer


@pytest.mark.parametrize("run", ["first-run", "second-run"], ids=["reports", "restarted"])
def test_a_node_that_registers_again_drains_on(run: str) -> None:
    cluster = Cluster()
    cluster.set_status(1, DRAINING)
    cluster.register(1, run)
    assert cluster.status(1) == DRAINING
    cluster.set_status(1, ONLINE)
    cluster.register(1, "third-run")
    assert cluster.status(1) == ONLINE


def test_a_node_that_was_fenced_drains_on_when_it_returns() -> None:
    cluster = Cluster()
    cluster.set_status(1, DRAINING)
    cluster.set_status(1, OFFLINE)
    assert cluster.status(1) == OFFLINE
    cluster.register(1, "first-run")
    assert cluster.status(1) == DRAINING


@pytest.mark.parametrize(("status", "later"), [(DRAINING, DRAINING), (ONLINE, ONLINE)])
def test_an_operator_decides_about_a_node_that_is_offline(status: str, later: str) -> None:
    cluster = Cluster()
    cluster.set_status(1, DRAINING if status == ONLINE else ONLINE)
    cluster.set_status(1, OFFLINE)
    cluster.set_status(1, status)
    assert cluster.status(1) == OFFLINE, "it does not run because an operator drains it"
    cluster.register(1, "second-run")
    assert cluster.status(1) == later


def test_a_removed_node_does_not_drain_when_it_is_added_again() -> None:
    cluster = Cluster()
    cluster.set_status(1, DRAINING)
    cluster._run(cmd.RemoveNode(1))
    cluster.register(1, "second-run")
    assert cluster.status(1) == ONLINE


def test_a_drain_ends_with_a_registration_while_a_node_runs_an_older_release() -> None:
    cluster = Cluster(roles=(REPLICATION_ROLE,))
    cluster.set_status(1, DRAINING)
    assert cluster.status(1) == DRAINING
    cluster.register(1, "second-run")
    assert cluster.status(1) == ONLINE, "as nodes of the older release have it"
