"""A child of `fork` inherits an open store, and must neither use it nor close it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

USES = """
import json, multiprocessing, sys
import penstock

def use(store, topic, consumer, answers):
    uses = [
        lambda: topic.write(b"of the child"),
        lambda: topic.write_many([b"of the child"]),
        lambda: topic.read(0, 0),
        lambda: store.create_topic("of the child"),
        lambda: consumer.poll(),
        lambda: consumer.commit(),
        lambda: store.run_upkeep(),
    ]
    found = []
    for each in uses:
        try:
            each()
            found.append("done")
        except penstock.StoreError as error:
            found.append(type(error).__name__)
    store.close()
    answers.put(found)

with penstock.open(sys.argv[1]) as store:
    topic = store.create_topic("orders", storage=sys.argv[2])
    topic.write(b"first")
    consumer = store.consumer("billing", ["orders"])
    processes = multiprocessing.get_context("fork")
    answers = processes.Queue()
    child = processes.Process(target=use, args=(store, topic, consumer, answers))
    child.start()
    found = answers.get(timeout=60)
    child.join(60)
    topic.write(b"second")
    values = [record.value.decode() for record in topic.read(0, 0)]
    print(json.dumps([found, child.exitcode, values, store.topics()]))
"""

ENDS = """
import os, sys
import penstock

with penstock.open(sys.argv[1]) as store:
    topic = store.create_topic("orders")
    topic.write(b"first")
    child = os.fork()
    if child == 0:
        sys.exit(3)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
    topic.write(b"second")
    store.topic("orders").write(b"third")
    os._exit(0)
"""


def run(script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("storage", ["segment", "rocksdb", "memory"])
def test_a_child_is_refused_whatever_it_asks_of_an_inherited_store(
    tmp_path: Path, storage: str
) -> None:
    found, code, values, topics = json.loads(run(USES, str(tmp_path / "data"), storage))
    assert found == ["LockedError"] * 7
    assert code == 0
    assert values == ["first", "second"]
    assert topics == ["orders"]


def test_a_child_that_ends_leaves_the_store_to_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "data"
    assert run(ENDS, str(path)) == "3\n"
    # The parent was killed in the end: the child must not have marked the store as closed.
    assert (path / "segment" / "abort").exists()
    with penstock.open(path) as store:
        values = [record.value for record in store.topic("orders").read(0, 0)]
    assert values == [b"first", b"second", b"third"]
