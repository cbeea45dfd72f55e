"""Metrics of Kafka requests, with bounded labels.

The event loop counts in plain numbers, which cost a request well below a microsecond of locks and
label lookups; a scrape reads them. Only the loop's thread counts. Labels are names of APIs and of
error codes, of which there is a fixed number; an API key that does not exist is `unknown`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.brokers.network import NetworkCounters

BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
UNKNOWN: Final = "unknown"
UNKNOWN_KEY: Final = -1
API_NAMES: Final[Mapping[int, str]] = {
    0: "Produce",
    1: "Fetch",
    2: "ListOffsets",
    3: "Metadata",
    8: "OffsetCommit",
    9: "OffsetFetch",
    10: "FindCoordinator",
    11: "JoinGroup",
    12: "Heartbeat",
    13: "LeaveGroup",
    14: "SyncGroup",
    15: "DescribeGroups",
    16: "ListGroups",
    18: "ApiVersions",
    19: "CreateTopics",
    20: "DeleteTopics",
    21: "DeleteRecords",
    22: "InitProducerId",
    23: "OffsetForLeaderEpoch",
    24: "AddPartitionsToTxn",
    25: "AddOffsetsToTxn",
    26: "EndTxn",
    28: "TxnOffsetCommit",
    32: "DescribeConfigs",
    33: "AlterConfigs",
    35: "DescribeLogDirs",
    37: "CreatePartitions",
    42: "DeleteGroups",
    43: "ElectLeaders",
    44: "IncrementalAlterConfigs",
    45: "AlterPartitionReassignments",
    46: "ListPartitionReassignments",
    47: "OffsetDelete",
    60: "DescribeCluster",
    75: "DescribeTopicPartitions",
}
CODE_FIELDS: Final = frozenset({"error_code", "partition_error_code"})
WITHOUT_CODES: Final = frozenset({"configs"})
"""Lists of a response whose items have no error codes; a topic that is created has 38 of them."""
REFUSED: Final = "refused"
"""In place of an error code: the request was malformed or not served, and the connection closed."""


class _Latency:
    __slots__ = ("counts", "seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.seconds = 0.0


class KafkaMetrics(Collector):
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.network: Final = NetworkCounters()
        self.follower_reads = 0
        self.connection_count: Callable[[], int] = lambda: 0
        self._latencies: Final[dict[int, _Latency]] = {}
        """By the key of an API."""
        self._errors: Final[Counter[tuple[str, str]]] = Counter()
        if registry is not None:
            registry.register(self)

    # Counting

    def record_request(self, key: int, seconds: float) -> None:
        """Record a request that has its response, or that closed its connection."""
        latency = self._latencies.get(key)
        if latency is None:
            name = API_NAMES.get(key, UNKNOWN)
            key = key if name != UNKNOWN else UNKNOWN_KEY
            latency = self._latencies.setdefault(key, _Latency())
        latency.counts[bisect_left(BUCKETS_S, seconds)] += 1
        latency.seconds += seconds

    def count_errors(self, key: int, codes: Iterable[int]) -> None:
        """Count the error codes of a response other than 0."""
        for code in codes:
            if code:
                self._errors[API_NAMES.get(key, UNKNOWN), _code_name(code)] += 1

    def count_rejected(self, key: int) -> None:
        self._errors[API_NAMES.get(key, UNKNOWN), REFUSED] += 1

    # Showing

    def collect(self) -> Iterator[Metric]:
        latencies = {
            API_NAMES.get(key, UNKNOWN): latency for key, latency in dict(self._latencies).items()
        }
        requests = CounterMetricFamily(
            "penstock_kafka_requests", "requests of Kafka clients", labels=["api"]
        )
        seconds = HistogramMetricFamily(
            "penstock_kafka_request_seconds",
            "time from a complete request to its response, waits included",
            labels=["api"],
        )
        for name, latency in sorted(latencies.items()):
            total, buckets = 0, []
            for bound, count in zip((*BUCKETS_S, float("inf")), latency.counts, strict=True):
                total += count
                buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
            requests.add_metric([name], total)
            seconds.add_metric([name], buckets, latency.seconds)
        yield requests
        yield seconds
        errors = CounterMetricFamily(
            "penstock_kafka_errors",
            "error codes in responses, one for each partition or group",
            labels=["api", "error"],
        )
        for labels, count in sorted(dict(self._errors).items()):
            errors.add_metric(labels, count)
        yield errors
        yield GaugeMetricFamily(
            "penstock_kafka_connections",
            "open connections of Kafka clients",
            value=self.connection_count(),
        )
        for name, meaning, value in (
            ("connections_opened", "connections taken", self.network.connections_opened),
            (
                "connections_refused",
                "connections beyond the limit",
                self.network.connections_refused,
            ),
            (
                "follower_reads",
                "reads of partitions that this node follows, with records",
                self.follower_reads,
            ),
            ("received_bytes", "bytes from Kafka clients", self.network.received_bytes),
            ("sent_bytes", "bytes to Kafka clients", self.network.sent_bytes),
        ):
            yield CounterMetricFamily(f"penstock_kafka_{name}", meaning, value=value)


def codes_in(response: Mapping[str, object], depth: int = 2) -> list[int]:
    """Return the error codes of a response, of its topics, and of their partitions."""
    codes: list[int] = []
    for name, value in response.items():
        if name in CODE_FIELDS:
            codes.append(_number(value))
        elif depth and isinstance(value, list | tuple) and name not in WITHOUT_CODES:
            for item in value:
                if isinstance(item, dict):
                    codes += codes_in(item, depth - 1)
    return codes


def _number(value: object) -> int:
    code = value.value if isinstance(value, ErrorCode) else value
    return code if isinstance(code, int) else 0


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return UNKNOWN
