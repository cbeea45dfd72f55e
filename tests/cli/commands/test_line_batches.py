"""Lines go in batches; none waits for lines that may never come, and none is lost at the stop."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import pytest

from penstock.cli.commands.line_batches import BATCH, BATCH_SIZE, batches_of_files, batches_of_lines
from penstock.cli.signals import Interrupts, Stopping, interrupts
from penstock.cli.signals import stopping as until_stopped


@pytest.fixture
def stopping() -> Iterator[Stopping]:
    with until_stopped() as found:
        yield found


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    reader, writer = os.pipe()
    with open(reader, "rb") as reads, open(writer, "wb", buffering=0) as writes:
        yield reads, writes


def test_lines_of_a_stream_that_goes_on_are_not_kept_waiting(
    pipe: tuple[BinaryIO, BinaryIO], stopping: Stopping
) -> None:
    reads, writes = pipe
    batches = batches_of_lines(reads, stopping)
    writes.write(b"one\r\ntwo\nthr")
    assert next(batches) == [b"one", b"two"]
    writes.write(b"ee\n")
    assert next(batches) == [b"three"]
    writes.write(b"\nlast")
    writes.close()
    assert [line for batch in batches for line in batch] == [b"", b"last"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_was_read_when_a_signal_comes_is_not_lost(
    pipe: tuple[BinaryIO, BinaryIO], number: signal.Signals, stopping: Stopping
) -> None:
    reads, writes = pipe
    batches = batches_of_lines(reads, stopping)
    lines = [b"%d" % n for n in range(2 * BATCH + 1)]
    writes.write(b"".join(line + b"\n" for line in lines))
    found = next(batches)
    assert len(found) == BATCH
    os.kill(os.getpid(), number)
    for batch in batches:
        found += batch
    assert (found, stopping.is_asked) == (lines, True)


def test_a_signal_ends_the_wait_for_a_line(
    pipe: tuple[BinaryIO, BinaryIO], stopping: Stopping
) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    assert list(batches_of_lines(pipe[0], stopping)) == []


def test_the_second_signal_does_not_wait(stopping: Stopping) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    assert stopping.is_asked
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_belongs_together_is_not_interrupted(number: signal.Signals) -> None:
    done = []

    def work(signals: Interrupts, what: str) -> None:
        with signals.held():
            os.kill(os.getpid(), number)
            done.append(what)

    with interrupts() as signals:
        with pytest.raises(KeyboardInterrupt):
            work(signals, "asked once")
        with pytest.raises(KeyboardInterrupt):
            work(signals, "asked twice")
    assert done == ["asked once"]


def test_signals_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with until_stopped():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_batches_are_bounded_by_number_and_by_size(
    kind: str, tmp_path: Path, stopping: Stopping
) -> None:
    lines = [b"x"] * (BATCH + 1) + [b"y" * (BATCH_SIZE // 2 + 1)] * 3 + [b"z" * 2 * BATCH_SIZE]
    text = b"\n".join(lines)
    (tmp_path / "lines").write_bytes(text)
    with BytesIO(text) if kind == "memory" else open(tmp_path / "lines", "rb") as stream:
        batches = list(batches_of_lines(stream, stopping))
    assert [line for batch in batches for line in batch] == lines
    assert len(batches[0]) == BATCH
    assert all(len(batch) == 1 or sum(map(len, batch)) <= BATCH_SIZE for batch in batches)


def test_files_are_batches_of_the_same_bounds(tmp_path: Path, stopping: Stopping) -> None:
    contents = [b"a\nb\n", b"", b"c" * BATCH_SIZE, b"d"]
    paths = [tmp_path / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    batches = list(batches_of_files(map(str, paths), stopping))
    assert batches == [[b"a\nb\n", b""], [b"c" * BATCH_SIZE], [b"d"]]
    os.kill(os.getpid(), signal.SIGINT)
    assert list(batches_of_files(map(str, paths), stopping)) == []
