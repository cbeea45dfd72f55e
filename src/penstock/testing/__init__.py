"""What tests of Penstock, and of engines and plug-ins for it, are written with."""

from penstock.testing.faults import CHANGES, FOREVER, OPERATIONS, Call, Operation, PowerCut, Rule
from penstock.testing.faulty_disk import FaultyDisk
from penstock.testing.manual_clock import ManualClock

__all__ = [
    "CHANGES",
    "FOREVER",
    "OPERATIONS",
    "Call",
    "FaultyDisk",
    "ManualClock",
    "Operation",
    "PowerCut",
    "Rule",
]
