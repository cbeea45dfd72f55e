"""Every metric of a node's tiers."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class TierMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry if registry is not None else CollectorRegistry()
        self.uploaded_bytes = Counter(
            "penstock_tier_uploaded_bytes", "bytes of records uploaded", registry=registry
        )
        self.upload_failures = Counter(
            "penstock_tier_upload_failures", "uploads that failed, to be tried again",
            registry=registry,
        )  # fmt: skip
        self.failing_shards = Gauge(
            "penstock_tier_failing_shards", "shards whose last upload failed", registry=registry
        )
        self.cold_reads = Counter(
            "penstock_tier_cold_reads", "reads that went to a tier", registry=registry
        )
        self.deleted_objects = Counter(
            "penstock_tier_deleted_objects", "objects removed from tiers", registry=registry
        )
        self.scrubbed_bytes = Counter(
            "penstock_tier_scrubbed_bytes", "bytes of tiers read and verified", registry=registry
        )
        self.damaged_chunks = Counter(
            "penstock_tier_damaged_chunks",
            "objects found damaged or missing, by readers and the scrubber",
            registry=registry,
        )
        self.damaged_reads = Counter(
            "penstock_tier_damaged_reads", "reads that met a damaged or missing object",
            registry=registry,
        )  # fmt: skip
