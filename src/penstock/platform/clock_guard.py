"""A clock that does not take a step of the wall clock for elapsed time.

    same boot     the wall clock must have moved as far as the machine's uptime, which no setting of
                  the clock changes, since the last moment that was trusted
    other boot    it must show a time from the last saved one to `gap_max_ms` later: how long the
                  machine was off is known from nothing else
    other nodes   those whose own clocks are trusted vouch for a time, or contradict it

While one of these fails, the clock is *held*: `expiry_ms` stands still at the last trusted time, so
that nothing more becomes old enough to delete; `now_ms` goes on. It is released when the clock
shows a plausible time again, when the other nodes agree with it, or by `confirm`.

The last trusted time is in a small file, saved every minute and at a close. It never moves while
the clock is held, so that a restart finds the same suspicion.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from penstock.platform.clock import Clock
from penstock.platform.disk import Disk
from penstock.platform.log import get_logger

CLOCK_FILE: Final = "clock"
STEP_MAX_MS: Final = 600_000
GAP_MAX_MS: Final = 72 * 3_600_000
SAVE_INTERVAL_S: Final = 60.0
_SIZE_MAX: Final = 4096
_DRIFT: Final = 1000
"""One millisecond in so many may be lost or gained: twice what a time service slews."""
_log: Final = get_logger(__name__)


class Anchor(Struct, frozen=True):
    """A moment that was trusted, on both clocks."""

    wall_ms: int
    uptime_ms: int
    boot_id: str


class ClockStatus(Struct, frozen=True):
    """What is known of a node's clock."""

    now_ms: int
    expiry_ms: int
    """The time by which things are old enough to delete."""
    held: bool
    offset_ms: int = 0
    """How far the clock is from where it was expected."""
    reason: str = ""
    since_ms: int | None = None
    """What the clock showed when the hold began."""


class PeerTime(Struct, frozen=True):
    """Another node's clock."""

    node: int
    offset_ms: int
    """Its time minus ours."""
    held: bool


class _Hold(Struct, frozen=True):
    expiry_ms: int
    reason: str
    since_ms: int
    by_peers: bool = False


class GuardedClock:
    """A `Clock` around another one; safe for many threads."""

    def __init__(
        self,
        inner: Clock,
        disk: Disk | None = None,
        path: str = "",
        *,
        step_max_ms: int = STEP_MAX_MS,
        gap_max_ms: int = GAP_MAX_MS,
    ) -> None:
        """Begin with the anchor in the file `path`; without one, with what the clock shows. With
        neither disk nor path nothing is kept for the next start."""
        self._inner: Final = inner
        self._disk: Final = disk
        self._path: Final = path
        self._step_ms: Final = step_max_ms
        self._gap_ms: Final = gap_max_ms
        self._lock: Final = threading.Lock()
        self._started_ms: Final = inner.uptime_ms()
        self._saved_at = float("-inf")
        self._save_failed = False
        self._hold: _Hold | None = None
        self._overruled = False
        """The operator confirmed a time that other nodes contradict."""
        self._anchor = self._load() or self._here()
        self.check()

    # The clock

    @property
    def inner(self) -> Clock:
        return self._inner

    def now_ms(self) -> int:
        return self._inner.now_ms()

    def monotonic(self) -> float:
        return self._inner.monotonic()

    def uptime_ms(self) -> int:
        return self._inner.uptime_ms()

    def boot_id(self) -> str:
        return self._inner.boot_id()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return self._inner.wait(event, seconds)

    def expiry_ms(self) -> int:
        """See `Clock`. Every call compares the clocks: no step stays unseen until a round."""
        now_ms, hold, anchor = self._inner.now_ms(), self._hold, self._anchor
        if hold is None:
            offset = now_ms - anchor.wall_ms - self._inner.uptime_ms() + anchor.uptime_ms
            if -self._step_ms <= offset <= self._step_ms:
                return now_ms
            self.check()
            hold = self._hold
        # A clock that goes back makes new records old ones: it is followed, too.
        return now_ms if hold is None else min(hold.expiry_ms, now_ms)

    # Watching

    def check(self) -> bool:
        """Compare the clocks, begin or end a hold; return whether the clock is held."""
        with self._lock:
            hold = self._hold
            if hold is not None and hold.by_peers:
                return True
            offset_ms, reason = self._suspicion()
            if not reason:
                if hold is not None:
                    self._release("clock_plausible_again")
                elif self._anchor.boot_id != self._inner.boot_id():
                    self._anchor = self._here()
            elif hold is None:
                self._begin(reason, offset_ms, self._expected_ms())
            return self._hold is not None

    def tick(self) -> None:
        """Look, and save the time when it is due. For a caller's regular rounds."""
        if not self.check() and self._inner.monotonic() - self._saved_at >= SAVE_INTERVAL_S:
            self.save()

    def save(self) -> None:
        """Keep the time for the next start, unless the clock is held. A disk that takes nothing is
        logged once: the time that was kept before stays."""
        if self._disk is None or self.check():
            return
        try:
            self._write(self._here())
        except OSError as error:
            if not self._save_failed:
                _log.warning("clock_not_saved", path=self._path, reason=str(error))
            self._save_failed = True
        else:
            self._save_failed = False

    def status(self) -> ClockStatus:
        held = self.check()
        now_ms, hold = self._inner.now_ms(), self._hold
        if not held or hold is None:
            return ClockStatus(now_ms, now_ms, held=False)
        offset_ms = now_ms - self._expected_ms()
        expiry_ms = min(hold.expiry_ms, now_ms)
        return ClockStatus(now_ms, expiry_ms, True, offset_ms, hold.reason, hold.since_ms)

    def confirm(self) -> ClockStatus:
        """Take what the clock shows for the right time, from now on and at the next start; raise
        `OSError` when that cannot be kept."""
        with self._lock:
            self._overruled = self._hold is not None and self._hold.by_peers
            if self._disk is not None:
                self._write(self._here())
            self._release("clock_confirmed")
        return self.status()

    def compare(self, peers: Sequence[PeerTime]) -> None:
        """Learn what other nodes' clocks show. Those that are held themselves do not count."""
        trusted = [peer for peer in peers if not peer.held]
        near = [peer for peer in trusted if abs(peer.offset_ms) <= self._step_ms]
        with self._lock:
            if 2 * len(near) > len(trusted):
                self._overruled = False
                if self._hold is not None:
                    self._release(
                        "clock_confirmed_by_peers", nodes=str([peer.node for peer in near])
                    )
            elif len(trusted) >= 2 and not near and self._hold is None and not self._overruled:
                # One other node may be the one that is wrong.
                offset_ms = -sorted(peer.offset_ms for peer in trusted)[len(trusted) // 2]
                reason = f"differs by {_span(offset_ms)} from the clocks of {len(trusted)} nodes"
                self._begin(reason, offset_ms, self._expected_ms(), by_peers=True)

    # The lock is held below

    def _begin(self, reason: str, offset_ms: int, expiry_ms: int, by_peers: bool = False) -> None:
        now_ms = self._inner.now_ms()
        self._hold = _Hold(min(expiry_ms, now_ms), reason, now_ms, by_peers)
        _log.warning(
            "clock_held",
            reason=reason,
            offset_ms=offset_ms,
            hint="nothing is deleted by age; set the clock right, or: penstock clock confirm",
        )

    def _release(self, event: str, **fields: str) -> None:
        now_ms = self._inner.now_ms()
        self._anchor, self._hold = self._here(), None
        _log.warning(event, now_ms=now_ms, **fields)

    def _suspicion(self) -> tuple[int, str]:
        """Return how far the clock is from where it should be, and what is wrong with that; the
        reason is empty when nothing is."""
        anchor, now_ms = self._anchor, self._inner.now_ms()
        if anchor.boot_id == self._inner.boot_id():
            elapsed_ms = self._inner.uptime_ms() - anchor.uptime_ms
            offset_ms = now_ms - anchor.wall_ms - elapsed_ms
            if abs(offset_ms) <= self._step_ms + abs(elapsed_ms) // _DRIFT:
                return offset_ms, ""
            way = "ahead of" if offset_ms > 0 else "short of"
            return offset_ms, f"is {_span(offset_ms)} {way} the time that has passed"
        gap_ms = now_ms - anchor.wall_ms
        here_ms = self._inner.uptime_ms() - self._started_ms
        if gap_ms < -self._step_ms:
            return gap_ms, f"is {_span(gap_ms)} earlier than the last one before the boot"
        if gap_ms > self._gap_ms + here_ms:
            return gap_ms, (
                f"is {_span(gap_ms)} later than the last one before the boot; the limit is "
                f"{_span(self._gap_ms)} (clock.gap_max_h)"
            )
        return gap_ms, ""

    def _expected_ms(self) -> int:
        anchor = self._anchor
        if anchor.boot_id == self._inner.boot_id():
            return anchor.wall_ms + self._inner.uptime_ms() - anchor.uptime_ms
        return anchor.wall_ms

    def _here(self) -> Anchor:
        return Anchor(self._inner.now_ms(), self._inner.uptime_ms(), self._inner.boot_id())

    # The file

    def _load(self) -> Anchor | None:
        if self._disk is None or not self._disk.exists(self._path):
            return None
        file = self._disk.open(self._path, writable=False)
        try:
            data = file.read_at(0, min(_SIZE_MAX, file.size()))
        finally:
            file.close()
        try:
            return _decoder.decode(data)
        except msgspec.DecodeError as error:
            # Nothing is known of the last time, as at the first start.
            _log.warning("clock_file_damaged", path=self._path, reason=str(error))
            return None

    def _write(self, anchor: Anchor) -> None:
        assert self._disk is not None, "asked by the caller"
        self._disk.replace(self._path, msgspec.json.encode(anchor) + b"\n")
        self._saved_at = self._inner.monotonic()


_decoder: Final = msgspec.json.Decoder(Anchor)


def _span(milliseconds: int) -> str:
    seconds = abs(milliseconds) / 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
