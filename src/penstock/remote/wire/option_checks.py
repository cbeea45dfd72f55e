"""Checks the options of a topic before they are written as JSON."""

from __future__ import annotations

import math
from typing import Final

from penstock.errors import BadRequestError
from penstock.meta import TieringPolicy

_OPTION_TYPES: Final = (str, int, float, bool, type(None))


def check_option(option: str, value: object) -> None:
    """Reject values that JSON cannot represent."""
    if isinstance(value, TieringPolicy):
        for field in TieringPolicy.__struct_fields__:
            check_option(f"{option}.{field}", getattr(value, field))
    elif isinstance(value, list | tuple):
        for item in value:
            check_option(option, item)
    elif not isinstance(value, _OPTION_TYPES):
        raise BadRequestError(
            f"{option}: {value!r} is not text, a number, a boolean, None or a list of them"
        )
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadRequestError(
            f"{option} must be a finite number, None (the node's default) or, for a retention, "
            f"-1 (no limit), got {value!r}"
        )
