"""Jobs on a store directory with Spark; each is a function here and a `penstock pipeline` command.

    from penstock import pipeline
    from penstock.pipeline import jobs

    print(jobs.export(pipeline.session(), "data", "parquet", topics=["orders"]))

Jobs are idempotent: a job may be repeated, also after it was killed. Each returns counts of its
work and checks them against the bounds of the store.
"""

from penstock.pipeline.jobs.consumer_lag import LagResult, PartitionLag, lag
from penstock.pipeline.jobs.exports.cleaning import CleanResult, clean
from penstock.pipeline.jobs.exports.iceberg_place import IcebergPlace
from penstock.pipeline.jobs.exports.job import ExportForm, ExportResult, ShardExport, export
from penstock.pipeline.jobs.exports.payload import Payload
from penstock.pipeline.jobs.imports.files import ImportColumns, ImportResult, import_
from penstock.pipeline.jobs.imports.kafka import (
    KafkaImportResult,
    PartitionImport,
    import_kafka,
)
from penstock.pipeline.jobs.imports.target import ImportPlace
from penstock.pipeline.jobs.maintenance import (
    RebuildResult,
    compact,
    expire,
    rebuild,
)
from penstock.pipeline.jobs.offloads.job import OffloadResult, ShardOffload, offload
from penstock.pipeline.jobs.statistics.job import Interval, StatsResult, TopicStats, TopKey, stats
from penstock.pipeline.jobs.statistics.page import check_plot, save_stats
from penstock.pipeline.jobs.tier_check import TierCheck
from penstock.pipeline.jobs.upkeep_result import ShardUpkeep, UpkeepResult
from penstock.pipeline.jobs.verification import ShardCheck, VerifyResult, verify

__all__ = [
    "CleanResult",
    "ExportForm",
    "ExportResult",
    "IcebergPlace",
    "ImportColumns",
    "ImportPlace",
    "ImportResult",
    "Interval",
    "KafkaImportResult",
    "LagResult",
    "OffloadResult",
    "PartitionImport",
    "PartitionLag",
    "Payload",
    "RebuildResult",
    "ShardCheck",
    "ShardExport",
    "ShardOffload",
    "ShardUpkeep",
    "StatsResult",
    "TierCheck",
    "TopKey",
    "TopicStats",
    "UpkeepResult",
    "VerifyResult",
    "check_plot",
    "clean",
    "compact",
    "expire",
    "export",
    "import_",
    "import_kafka",
    "lag",
    "offload",
    "rebuild",
    "save_stats",
    "stats",
    "verify",
]
