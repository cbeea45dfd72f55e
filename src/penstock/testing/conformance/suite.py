"""All parts of the conformance suite in one class."""

from __future__ import annotations

from penstock.testing.conformance.bad_input import BadInput
from penstock.testing.conformance.bounds import Bounded
from penstock.testing.conformance.compaction import Compaction
from penstock.testing.conformance.concurrency import Concurrency
from penstock.testing.conformance.deletes import Deletes
from penstock.testing.conformance.keys import Keys
from penstock.testing.conformance.producers import Producers
from penstock.testing.conformance.reads import Reads
from penstock.testing.conformance.restarts import Restarts
from penstock.testing.conformance.retention import Retention
from penstock.testing.conformance.shards import Shards
from penstock.testing.conformance.tags import Tags
from penstock.testing.conformance.times import Times
from penstock.testing.conformance.transactions import Transactions
from penstock.testing.conformance.writes import Writes


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
