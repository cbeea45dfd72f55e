"""The same stores as for views, and a way to run the command in this process."""

from __future__ import annotations

import json
from typing import NamedTuple, Protocol

import pytest
from tests.engine.segment.readonly.conftest import copy, golden_copy, written

from penstock.cli import main
from penstock.engine.segment.rocketmq.fastjson import JsonDict

__all__ = ["copy", "golden_copy", "run", "written"]


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[JsonDict]:
        """What `--json` printed."""
        return [json.loads(line) for line in self.out.splitlines()]


class Run(Protocol):
    def __call__(self, *arguments: object) -> Ran: ...


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Ran:
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(each) for each in arguments])
        out, err = capfdbinary.readouterr()
        code = stopped.value.code or 0
        assert isinstance(code, int)
        return Ran(code, out.decode(), err.decode())

    return run
