"""Stores the members of groups in the meta service: one thread that saves, removes and loads.

A group waits here at most once; what is saved is its state at the moment the thread comes to it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.errors import StaleWriteError, StoreError
from penstock.groups.snapshot import SIZE_MAX, GroupSnapshot, decode_snapshot, encode_snapshot
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger

if TYPE_CHECKING:
    from penstock.groups.coordinator.coordinator import GroupCoordinator

STOP_S: Final = 5.0
_PAUSE_S: Final = 0.5
"""Pause between a failure and the next attempt."""

_log: Final = get_logger(__name__)


class GroupKey(NamedTuple):
    namespace: str
    group: str


class GroupStateClient(Protocol):
    """The part of the meta service that stores members. Calls wait for the sync."""

    def save_group_state(self, namespace: str, group: str, generation: int, state: bytes) -> None:
        """Store the state of a generation; an empty one removes it. Raises `StaleWriteError` when
        that of a later generation is stored."""
        ...

    def get_group_state(self, namespace: str, group: str) -> bytes | None: ...

    def list_group_states(self) -> list[tuple[str, str, bytes]]: ...


class GroupKeeper:
    def __init__(
        self, states: GroupStateClient, coordinator: GroupCoordinator, clock: Clock
    ) -> None:
        self._states: Final = states
        self._coordinator: Final = coordinator
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._work: Final[dict[GroupKey, None]] = {}
        self._loads: Final[set[GroupKey]] = set()
        self._removals: Final[dict[GroupKey, int]] = {}
        self._wake: Final = threading.Event()
        self._ended: Final = threading.Event()
        self._thread: threading.Thread | None = None

    def save(self, key: GroupKey) -> None:
        self._add(key)

    def remove(self, key: GroupKey, generation: int) -> None:
        """The last member is gone."""
        with self._lock:
            self._removals[key] = generation
        self._add(key)

    def load(self, key: GroupKey) -> None:
        with self._lock:
            self._loads.add(key)
        self._add(key)

    def read_all(self) -> Iterator[tuple[GroupKey, GroupSnapshot]]:
        for namespace, group, state in self._states.list_group_states():
            snapshot = decode_snapshot(state)
            if snapshot is None:
                _log.warning("group_state_not_decoded", group=group, namespace=namespace)
            else:
                yield GroupKey(namespace, group), snapshot

    def close(self) -> None:
        """Finish the queued work, within a short time."""
        self._ended.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _add(self, key: GroupKey) -> None:
        with self._lock:
            self._work[key] = None
            if self._thread is None and not self._ended.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="penstock-group-state", daemon=True
                )
                self._thread.start()
        self._wake.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                key = next(iter(self._work), None)
                if key is not None:
                    del self._work[key]
                else:
                    self._wake.clear()
            if key is not None:
                self._serve(key)
            elif self._ended.is_set():
                return
            else:
                self._wake.wait()

    def _serve(self, key: GroupKey) -> None:
        with self._lock:
            removed = self._removals.pop(key, None)
            is_load = key in self._loads
            self._loads.discard(key)
        try:
            if removed is not None:
                self._remove(key, removed)
            if is_load:
                state = self._states.get_group_state(*key)
                snapshot = None if state is None else decode_snapshot(state)
                self._coordinator.restore(key, snapshot)
            else:
                self._save(key)
        except StoreError as error:
            _log.warning("group_state_not_saved", group=key.group, reason=str(error))
            self._coordinator.mark_unsaved(key, is_ours=not isinstance(error, StaleWriteError))
            if removed is not None and not isinstance(error, StaleWriteError):
                with self._lock:
                    self._removals.setdefault(key, removed)
                if not self._ended.is_set():
                    self._clock.wait(self._ended, _PAUSE_S)
                    self._add(key)

    def _remove(self, key: GroupKey, generation: int) -> None:
        self._states.save_group_state(*key, generation, b"")

    def _save(self, key: GroupKey) -> None:
        unsaved = self._coordinator.to_save(key)
        if unsaved is None:
            return
        snapshot, mark = unsaved
        state = encode_snapshot(snapshot)
        if len(state) > SIZE_MAX:
            _log.warning("group_state_too_large", group=key.group, size=len(state))
            state = b""
        self._states.save_group_state(*key, snapshot.generation, state)
        self._coordinator.mark_saved(key, mark)
