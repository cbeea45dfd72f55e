"""Which call of a disk fails, and how: the rules, and the log of calls they are checked against."""

from __future__ import annotations

import math
import os
from collections import Counter, deque
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, Literal, NamedTuple, get_args

Operation = Literal[
    "open",
    "read",
    "write",
    "truncate",
    "allocate",
    "map",
    "sync",
    "sync_directory",
    "make_directory",
    "link",
    "rename",
    "replace",
    "remove",
    "lock",
]

OPERATIONS: Final[frozenset[Operation]] = frozenset(get_args(Operation))
CHANGES: Final[frozenset[Operation]] = OPERATIONS - {"open", "read", "map", "lock"}
"""The operations that change what is on the disk: a crash can only be noticed around these."""

FOREVER: Final = math.inf
_CALLS_KEPT_MAX: Final = 100_000


class PowerCut(BaseException):
    """The machine stopped at this call (`stop_at_call`), and stays stopped until `crash` or `kill`.

    Not an `Exception`, for the code under test must not handle it.
    """


class Call(NamedTuple):
    """One call that reached the disk."""

    operation: Operation
    path: str


@dataclass(slots=True)
class Rule:
    """Calls of `operations` on paths like `path_glob` fail, after `after` of them passed, `times`
    times. A failing write puts its first `landed` bytes on the disk before it fails."""

    operations: frozenset[Operation]
    path_glob: str
    error_number: int | None  # None: the machine stops
    after: int = 0
    times: float = 1
    landed: int = 0
    failures: int = 0

    def strikes(self, operation: Operation, path: str) -> bool:
        """Count this call if it is one of the rule's; say whether it fails."""
        if operation not in self.operations or not fnmatchcase(path, self.path_glob):
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.failures >= self.times:
            return False
        self.failures += 1
        return True


class Faults:
    """The rules in force and the calls made so far."""

    def __init__(self) -> None:
        # Plain tuples: a store on this disk makes a thousand calls in a few milliseconds.
        self._calls: Final[deque[tuple[Operation, str]]] = deque(maxlen=_CALLS_KEPT_MAX)
        self.counts: Final[Counter[Operation]] = Counter()
        self._rules: list[Rule] = []
        self._stopped = False

    @property
    def calls(self) -> list[Call]:
        return [Call(operation, path) for operation, path in self._calls]

    def add(self, rule: Rule) -> Rule:
        assert rule.operations <= OPERATIONS, f"unknown operation in {set(rule.operations)}"
        self._rules.append(rule)
        return rule

    def clear(self) -> None:
        self._rules.clear()

    def count(self, operations: Collection[Operation]) -> int:
        return sum(self.counts[operation] for operation in operations)

    def enter(self, operation: Operation, path: str) -> None:
        """Log a call; raise what a rule says it raises."""
        rule = self.striking(operation, path)
        if rule is not None:
            raise self.error_of(rule, path)

    def check_running(self, path: str) -> None:
        if self._stopped:
            raise PowerCut(path)

    def restart(self) -> None:
        """Let the machine run again; rules that stop it are spent."""
        self._stopped = False
        self._rules = [rule for rule in self._rules if rule.error_number is not None]

    def striking(self, operation: Operation, path: str) -> Rule | None:
        """Log a call; return the rule by which it fails, if one does.

        Every rule counts the call, so that two rules do not delay each other.
        """
        if self._stopped:
            raise PowerCut(path)
        self._calls.append((operation, path))
        self.counts[operation] += 1
        if not self._rules:
            return None
        struck = [rule for rule in self._rules if rule.strikes(operation, path)]
        return struck[0] if struck else None

    def error_of(self, rule: Rule, path: str) -> BaseException:
        """Return what a call that `rule` strikes raises."""
        if rule.error_number is None:
            self._stopped = True
            return PowerCut(path)
        return OSError(rule.error_number, os.strerror(rule.error_number), path)
