"""What is counted of the requests of Kafka clients."""

from __future__ import annotations

from collections.abc import Iterator

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry, generate_latest

from penstock.brokers.kafka.metrics import KafkaMetrics, codes_in


def test_errors_of_topics_and_partitions_are_found_in_a_response() -> None:
    failed, fine = ErrorCode.unknown_topic_or_partition, ErrorCode.none
    response = {
        "error_code": fine,
        "throttle_time_ms": 7,
        "topics": [
            {"name": "a", "partitions": [{"error_code": failed}, {"error_code": fine}]},
            {"name": "b", "partitions": ({"error_code": 16},), "error_code": 3},
        ],
    }
    assert sorted(code for code in codes_in(response) if code) == [3, 3, 16]


def test_errors_of_the_partitions_of_a_transaction_are_found_in_a_response() -> None:
    partition = {"partition_index": 0, "partition_error_code": ErrorCode.invalid_txn_state}
    topic = {"name": "a", "results_by_partition": [partition]}
    response = {"results_by_topic_v3_and_below": [topic]}
    assert codes_in(response) == [int(ErrorCode.invalid_txn_state.value)]


def test_the_settings_of_a_created_topic_are_not_searched_for_errors() -> None:
    class Unread(list[object]):
        def __iter__(self) -> Iterator[object]:
            raise AssertionError("38 settings for each of a thousand topics")

    response = {"topics": [{"name": "a", "error_code": 36, "configs": Unread([{"name": "b"}])}]}
    assert codes_in(response) == [36]


def test_labels_are_names_that_exist() -> None:
    registry = CollectorRegistry()
    metrics = KafkaMetrics(registry)
    for key in (0, 9_999, -1):
        metrics.record_request(key, 0.003)
        metrics.count_rejected(key)
    metrics.count_errors(0, [0, 3, 9_999])
    text = generate_latest(registry).decode()
    assert 'penstock_kafka_requests_total{api="Produce"} 1.0' in text
    assert 'penstock_kafka_requests_total{api="unknown"} 2.0' in text
    assert 'penstock_kafka_errors_total{api="Produce",error="unknown"} 1.0' in text
    assert 'error="unknown_topic_or_partition"} 1.0' in text
    assert 'penstock_kafka_errors_total{api="unknown",error="refused"} 2.0' in text
    assert 'penstock_kafka_request_seconds_bucket{api="Produce",le="0.0025"} 0.0' in text
    assert 'penstock_kafka_request_seconds_bucket{api="Produce",le="0.005"} 1.0' in text
    assert 'penstock_kafka_request_seconds_count{api="Produce"} 1.0' in text
