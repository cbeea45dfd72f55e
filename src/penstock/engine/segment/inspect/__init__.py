"""Looking into a store directory: what is there, record by record, and whether it is whole.

Everything here only reads, through a `ReadOnlyStore`, and works beside a running writer, except two
functions, which take the lock: `rebuild` writes the derived files anew, and `repair` makes a store
usable whose log lacks bytes.
"""

from penstock.engine.segment.inspect.derive import rebuild
from penstock.engine.segment.inspect.listing import (
    Hit,
    LogEntry,
    RecordDetail,
    find_by_key,
    find_by_tag,
    find_by_time,
    log_entries,
    record_detail,
    records,
    shards_named,
)
from penstock.engine.segment.inspect.repair import RepairReport, repair
from penstock.engine.segment.inspect.repair_plan import LostRecords, RepairStep
from penstock.engine.segment.inspect.report import Checked, Finding, Progress, VerifyReport
from penstock.engine.segment.inspect.summary import (
    CheckpointInfo,
    FileInfo,
    PartInfo,
    ShardInfo,
    StoreInfo,
    TopicInfo,
    files,
    info,
    shard_infos,
    topic_infos,
)
from penstock.engine.segment.inspect.verify import verify

__all__ = [
    "Checked",
    "CheckpointInfo",
    "FileInfo",
    "Finding",
    "Hit",
    "LogEntry",
    "LostRecords",
    "PartInfo",
    "Progress",
    "RecordDetail",
    "RepairReport",
    "RepairStep",
    "ShardInfo",
    "StoreInfo",
    "TopicInfo",
    "VerifyReport",
    "files",
    "find_by_key",
    "find_by_tag",
    "find_by_time",
    "info",
    "log_entries",
    "rebuild",
    "record_detail",
    "records",
    "repair",
    "shard_infos",
    "shards_named",
    "topic_infos",
    "verify",
]
