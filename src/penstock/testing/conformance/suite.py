"""All parts of the conformance suite in one class."""

from __future__ import annotations

from penstock.testing.conformance.cases.bad_input import BadInput
from penstock.testing.conformance.cases.bounds import Bounded
from penstock.testing.conformance.cases.compaction import Compaction
from penstock.testing.conformance.cases.concurrency import Concurrency
from penstock.testing.conformance.cases.deletes import Deletes
from penstock.testing.conformance.cases.keys import Keys
from penstock.testing.conformance.cases.producers import Producers
from penstock.testing.conformance.cases.reads import Reads
from penstock.testing.conformance.cases.restarts import Restarts
from penstock.testing.conformance.cases.retention import Retention
from penstock.testing.conformance.cases.shards import Shards
from penstock.testing.conformance.cases.tags import Tags
from penstock.testing.conformance.cases.times import Times
from penstock.testing.conformance.cases.transactions import Transactions
from penstock.testing.conformance.cases.writes import Writes


class EngineConformance(
    Shards,
    Writes,
    Producers,
    Transactions,
    Reads,
    Tags,
    Keys,
    Deletes,
    Times,
    Compaction,
    Retention,
    Bounded,
    BadInput,
    Concurrency,
    Restarts,
):
    """Subclass it with a fixture `harness`; see the package's head."""
