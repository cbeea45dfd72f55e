"""Clusters of real processes under load and faults: the history of their clients has no anomaly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cluster import faults
from tests.cluster.drill import ONE_COPY, QUICK, Options, ReplicationMissingError, run
from tests.cluster.network import missing_for_namespaces

pytest.importorskip("penstock._native", reason="a cluster needs the extension")

Record = Callable[[str, object], None]
SOAK_S = 1_800.0


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


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_replicated_topics_lose_nothing_when_their_leaders_die_stop_and_pause(
    tmp_path: Path, record_property: Record
) -> None:
    options = Options(
        seconds=20,
        seed=2,
        replication=3,
        kinds=QUICK,
        rest_s=(0.5, 1.5),
        pause_max_s=5.0,
        has_transactions=False,
    )
    drill(options, tmp_path, record_property)


@pytest.mark.soak
@pytest.mark.timeout(3 * SOAK_S)
@pytest.mark.parametrize("replication", [1, 3])
def test_half_an_hour_of_all_faults(
    tmp_path: Path, record_property: Record, replication: int
) -> None:
    options = Options(
        seconds=SOAK_S,
        seed=replication,
        replication=replication,
        has_transactions=True,
        kinds=tuple(faults.KINDS),
        rest_s=(2.0, 8.0),
        pause_max_s=30.0,
        has_network=not missing_for_namespaces(),
    )
    drill(options, tmp_path, record_property)
