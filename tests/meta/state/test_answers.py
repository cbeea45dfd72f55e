"""Answers are remembered for retries, the newest ones only."""

from __future__ import annotations

import pytest
from tests.meta.scripts import rows

from penstock.meta.state import answers
from penstock.meta.state.metadata import machine as metadata
from penstock.meta.state.metadata.commands import AllocateProducerIds, Applied, ProducerIds, Request
from penstock.meta.state.view import MemoryView


def allocate(view: MemoryView, request_id: str) -> tuple[int, bool]:
    answer = metadata.apply(view, Request(1, AllocateProducerIds(1), request_id))
    assert isinstance(answer, Applied)
    assert isinstance(answer.result, ProducerIds)
    return answer.result.first, answer.repeated


def test_the_newest_answers_are_remembered_and_the_oldest_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "REQUESTS_MAX", 3)
    view = MemoryView()
    for number in range(10):
        assert allocate(view, f"r{number}") == (number + 1, False)
        assert allocate(view, f"r{number}") == (number + 1, True)
        assert len(rows(view)) <= 1 + 2 * 3
    for number in (7, 8, 9):
        assert allocate(view, f"r{number}") == (number + 1, True)
    assert allocate(view, "r6") == (11, False)
    assert allocate(view, "") == (12, False)
    assert allocate(view, "") == (13, False)
