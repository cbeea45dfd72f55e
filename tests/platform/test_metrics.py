"""The store's metrics are read through the registry they were made with."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from penstock.platform.metrics import LogPositions, SegmentMetrics


def test_two_stores_do_not_share_numbers() -> None:
    first, second = SegmentMetrics(), SegmentMetrics()
    first.damaged_reads.inc()
    assert first.registry.get_sample_value("penstock_segment_damaged_reads_total") == 1
    assert second.registry.get_sample_value("penstock_segment_damaged_reads_total") == 0


def test_sizes_of_the_log_are_read_from_the_store_when_asked() -> None:
    registry = CollectorRegistry()
    metrics = SegmentMetrics(registry)

    def values() -> list[float | None]:
        names = ("appended_bytes_total", "flushed_bytes_total", "log_bytes")
        return [registry.get_sample_value(f"penstock_segment_{name}") for name in names]

    assert values() == [0, 0, 0]
    now = LogPositions(100, 1_000, 1_000)
    metrics.watch_log(lambda: now)
    assert values() == [0, 0, 900]
    now = LogPositions(500, 1_200, 1_300)
    assert values() == [300, 200, 800]
    now = LogPositions(500, 1_100, 1_100)  # cut: counters do not go back
    assert values() == [300, 200, 600]
    metrics.watch_log(lambda: LogPositions(0, 50, 60))  # another store, opened later
    assert values() == [300, 200, 60]


def test_everything_can_be_scraped() -> None:
    metrics = SegmentMetrics()
    metrics.writes_refused.labels(cause="disk_full").inc()
    metrics.dispatch_lag_records.labels(dispatcher="tier").set(5)
    metrics.flush_seconds.observe(0.003)
    text = generate_latest(metrics.registry).decode()
    assert 'penstock_segment_writes_refused_total{cause="disk_full"} 1.0' in text
    assert 'penstock_segment_dispatch_lag_records{dispatcher="tier"} 5.0' in text
