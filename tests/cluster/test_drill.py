"""Clusters of real processes under load and faults: the history of their clients has no anomaly."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster import faults
from tests.cluster.drill import ONE_COPY, Options, ReplicationMissingError, run
from tests.cluster.network import missing_for_namespaces

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

Record = Callable[[str, object], None]


def drill(options: Options, directory: Path, record: Record) -> None:
    try:
        report = run(options, directory, lambda _line: None)
    except ReplicationMissingError as error:
        pytest.skip(str(error))
    except AssertionError as error:
        raise AssertionError(f"seed {options.seed}, {options}: {error}") from error
    assert not report.anomalies, report.failure()
    for line in report.lines():
        record("measured", line)


def test_a_plan_follows_from_its_seed_and_tries_every_fault() -> None:
    plans = [faults.plan(seed, 600, ONE_COPY, (1.0, 2.0), 6.0) for seed in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert {fault.kind for fault in plans[0]} == set(ONE_COPY)


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_when_nodes_die_stop_and_pause(
    tmp_path: Path, record_property: Record
) -> None:
    kinds = ("kill", "kill all", "pause")
    options = Options(seconds=12, seed=1, kinds=kinds, rest_s=(0.5, 1.5), pause_max_s=3.0)
    drill(options, tmp_path, record_property)


@pytest.mark.timeout(600)
def test_replicated_topics_lose_nothing_when_their_leaders_die_stop_and_pause(
    tmp_path: Path, record_property: Record
) -> None:
    options = Options(
        seconds=12,
        seed=2,
        replication=3,
        kinds=("kill", "stop", "pause"),
        rest_s=(0.5, 1.5),
        pause_max_s=3.0,
        has_transactions=False,
    )
    drill(options, tmp_path, record_property)


@pytest.mark.soak
@pytest.mark.timeout(3 * 3_600)
@pytest.mark.parametrize(
    ("nodes", "replication", "storage", "flush", "seconds"),
    [
        (3, 1, "segment", "async", 300.0),
        (3, 3, "segment", "async", 360.0),
        (5, 3, "segment", "async", 360.0),
        (3, 3, "segment", "sync", 240.0),
        (3, 3, "rocksdb", "async", 240.0),
        (5, 3, "rocksdb", "sync", 240.0),
        (3, 3, "memory", "async", 180.0),
    ],
)
def test_half_an_hour_of_all_faults(
    tmp_path: Path,
    record_property: Record,
    nodes: int,
    replication: int,
    storage: str,
    flush: str,
    seconds: float,
) -> None:
    """What a machine cannot do, and what needs other copies or settings, is left out and named."""
    old = os.environ.get("PENSTOCK_OLD_SOURCES")
    options = Options(
        seconds=seconds,
        seed=100 * nodes + replication,
        nodes=nodes,
        replication=replication,
        storage=storage,
        flush=flush,
        kinds=tuple(faults.KINDS),
        rest_s=(2.0, 8.0),
        pause_max_s=30.0,
        has_network=not missing_for_namespaces(),
        old_tree=None if old is None else Path(old),
    )
    drill(options, tmp_path, record_property)
