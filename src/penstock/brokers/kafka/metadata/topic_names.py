"""Names that Kafka's clients accept for a topic."""

from __future__ import annotations

import re
from typing import Final

NAME_SIZE_MAX: Final = 249
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+\Z")


def is_legal(name: str) -> bool:
    return (
        name not in {"", ".", ".."}
        and len(name) <= NAME_SIZE_MAX
        and _LEGAL.match(name) is not None
    )
