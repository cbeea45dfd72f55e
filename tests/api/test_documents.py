"""The code in the guide runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "embedded.md"


@pytest.mark.timeout(300)
def test_the_guide_to_the_embedded_store_runs_as_written(directory: Path) -> None:
    directory.mkdir()
    text = GUIDE.read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    code = [sys.executable, "-W", "error", "-c", "\n".join(blocks)]
    subprocess.run(code, cwd=directory, check=True, stdout=subprocess.DEVNULL, timeout=240)
