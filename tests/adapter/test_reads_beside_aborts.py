"""A read of committed records which overlaps aborted transactions is made again, within bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.engine.test_handler import NAME, Bench

from penstock.engine.contract import Isolation
from penstock.engine.handler import StorageEngineHandler
from penstock.engine.memory import MemoryStorageEngine
from penstock.errors import BusyError, RetryableError
from penstock.record import Offset

Read = Callable[[StorageEngineHandler], object]

READS: dict[str, Read] = {
    "read_by_offset": lambda handler: handler.read_by_offset(NAME, Offset(0)),
    "read_by_tag": lambda handler: handler.read_by_tag(NAME, "t"),
    "query_by_key": lambda handler: handler.query_by_key(NAME, b"k"),
}


def abort_during_reads(bench: Bench, call: str, times: int, patched: pytest.MonkeyPatch) -> None:
    """Let a transaction on the shard be aborted during each of the next reads."""
    entry = bench.handler.find(NAME)
    read = getattr(MemoryStorageEngine, call)
    left = [None] * times

    def beside_abort(self: MemoryStorageEngine, *arguments: object, **options: object) -> object:
        found: object = read(self, *arguments, **options)
        if left:
            left.pop()
            entry.aborts += 1
        return found

    patched.setattr(MemoryStorageEngine, call, beside_abort)


@pytest.mark.parametrize("call", READS)
def test_a_read_is_made_again_until_none_is_aborted_meanwhile(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    bench.put(b"kept")
    reads = bench.handler.find(NAME).reads
    abort_during_reads(bench, call, 99, monkeypatch)
    found = READS[call](bench.handler)
    assert isinstance(found, list)
    assert [one.value for one in found] == [b"kept"]
    assert bench.handler.find(NAME).reads == reads + 1, "for whoever reads, it was one"


@pytest.mark.parametrize("call", READS)
def test_a_shard_with_an_abort_in_every_read_is_busy_for_now(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    bench.put(b"kept")
    with monkeypatch.context() as patched:
        abort_during_reads(bench, call, 10**6, patched)
        with pytest.raises(BusyError, match=r"aborted during each of 100 reads.*later") as caught:
            READS[call](bench.handler)
        assert isinstance(caught.value, RetryableError)
        newest = bench.handler.read_by_offset(NAME, Offset(0), isolation=Isolation.UNCOMMITTED)
        assert [one.value for one in newest] == [b"kept"]
    assert READS[call](bench.handler)
