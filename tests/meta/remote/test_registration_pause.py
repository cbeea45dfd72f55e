"""How long a node waits that was fenced and that no answer had reached."""

from __future__ import annotations

from penstock.meta.remote.registration_pause import PAUSE_MAX_S, RegistrationPause
from penstock.testing import ManualClock


def test_a_node_that_was_answered_registers_immediately() -> None:
    pause = RegistrationPause(ManualClock())
    assert pause.fenced() == 0, "it has just started"
    pause.registered()
    pause.answered()
    assert pause.fenced() == 0


def test_the_pauses_double_until_an_answer_comes() -> None:
    clock = ManualClock()
    pause = RegistrationPause(clock)
    pauses = []
    for _ in range(7):
        pause.registered()
        pauses.append(pause.fenced())
        clock.advance(pauses[-1] / 2)
        assert pause.fenced() == pauses[-1] / 2
        clock.advance(pauses[-1] / 2)
        assert pause.fenced() == 0
    assert pauses == [2, 4, 8, 16, 30, 30, PAUSE_MAX_S]
    pause.registered()
    pause.answered()
    assert pause.fenced() == 0
    pause.registered()
    assert pause.fenced() == 2
