"""The sample engine of `examples/engine`, as if its package were installed."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "examples" / "engine"


@contextmanager
def sample_installed(directory: Path) -> Iterator[None]:
    """Put the package and its metadata on `sys.path`, as an installation does."""
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    packages = directory / "packages"
    shutil.copytree(SAMPLE / "penstock_sqlite", packages / "penstock_sqlite")
    info = packages / f"penstock_sqlite-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    sys.path.insert(0, str(packages))
    try:
        yield
    finally:
        sys.path.remove(str(packages))
        for name in [name for name in sys.modules if name.startswith("penstock_sqlite")]:
            del sys.modules[name]
