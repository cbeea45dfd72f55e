"""The store's metrics are read through the registry they were made with."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from penstock.metrics import SegmentMetrics


def test_two_stores_do_not_share_numbers() -> None:
    first, second = SegmentMetrics(), SegmentMetrics()
    first.damaged_reads.inc()
    assert first.registry.get_sample_value("penstock_segment_damaged_reads_total") == 1
    assert second.registry.get_sample_value("penstock_segment_damaged_reads_total") == 0


def test_appends_are_read_from_the_store_when_asked() -> None:
    registry = CollectorRegistry()
    metrics = SegmentMetrics(registry)
    assert registry.get_sample_value("penstock_segment_appended_records_total") == 0
    metrics.watch_appends(lambda: (3, 300))
    assert registry.get_sample_value("penstock_segment_appended_records_total") == 3
    assert registry.get_sample_value("penstock_segment_appended_bytes_total") == 300


def test_everything_can_be_scraped() -> None:
    metrics = SegmentMetrics()
    metrics.writes_refused.labels(cause="disk_full").inc()
    metrics.dispatch_lag_records.labels(dispatcher="tier").set(5)
    metrics.flush_seconds.observe(0.003)
    text = generate_latest(metrics.registry).decode()
    assert 'penstock_segment_writes_refused_total{cause="disk_full"} 1.0' in text
    assert 'penstock_segment_dispatch_lag_records{dispatcher="tier"} 5.0' in text
