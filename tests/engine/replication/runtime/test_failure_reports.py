"""Failures of shards that are repeated are logged once in a while."""

from __future__ import annotations

from penstock.engine.replication.runtime.failure_reports import REPEATED_S, FailureReports


def test_a_failure_is_logged_once_and_then_with_its_number_of_repetitions() -> None:
    reports = FailureReports()
    assert reports.count(0.0, "a_0", "the disk is full") == 0
    assert reports.count(0.1, "a_0", "the disk is full") is None
    assert reports.count(0.2, "a_0", "the disk is full") is None
    assert reports.count(REPEATED_S, "a_0", "the disk is full") == 2
    assert reports.count(REPEATED_S + 1, "a_0", "the disk is full") is None


def test_another_failure_and_another_shard_are_logged_immediately() -> None:
    reports = FailureReports()
    assert reports.count(0.0, "a_0", "the disk is full") == 0
    assert reports.count(0.1, "b_0", "the disk is full") == 0
    assert reports.count(0.2, "a_0", "the disk is gone") == 0
    reports.remove("a_0")
    assert reports.count(0.3, "a_0", "the disk is gone") == 0
