"""What a leader does before it hands its shards over: it accepts no more, and commits the rest."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.replication.leader import LeaderReplica


def stop_appends(leaders: Iterable[LeaderReplica]) -> None:
    """Accept no further records where another replica in sync can lead: this node is about to
    stop. What was appended is copied and committed as before."""
    for leader in leaders:
        if len(leader.assignment.in_sync) > 1:
            leader.logs[0].follow()


def count_uncommitted(leaders: Iterable[LeaderReplica]) -> int:
    """Return in how many shards a record waits for another replica in sync."""
    return sum(
        leader.logs[0].commit < leader.logs[0].end
        for leader in leaders
        if len(leader.assignment.in_sync) > 1
    )
