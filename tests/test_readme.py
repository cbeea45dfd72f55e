"""The README's code runs as it is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_tour_runs_as_written(tmp_path: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    assert blocks
    subprocess.run([sys.executable, "-c", "\n".join(blocks)], cwd=tmp_path, check=True)
