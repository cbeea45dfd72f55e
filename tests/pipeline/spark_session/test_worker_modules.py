"""Spark workers name modules by strings, and fall back silently to slower code if one is missing:
a moved module must fail here."""

from __future__ import annotations

import ast
import gc
import os
from importlib.util import find_spec

import pytest

from penstock.pipeline.spark_session import requirements, worker_daemon, worker_python


def test_the_daemon_preloads_modules_that_exist() -> None:
    missing = [name for name in worker_daemon._NEEDED if find_spec(name) is None]
    assert missing == []


def test_the_launcher_names_a_daemon_that_exists() -> None:
    tree = ast.parse(worker_python._DAEMON)
    imported = [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    ours = [(module, name) for module, name in imported if (module or "").startswith("penstock")]
    assert ours == [(worker_daemon.__name__, worker_daemon.main.__name__)]


def test_the_native_extension_has_the_name_that_executors_are_checked_for() -> None:
    assert find_spec(requirements.NATIVE) is not None


def test_a_preload_loads_every_module_of_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(worker_daemon, "import_module", loaded.append)
    monkeypatch.setattr(os, "register_at_fork", lambda **_: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    worker_daemon.preload("pyspark.worker")
    assert loaded == ["pyspark.worker", *worker_daemon._NEEDED]
