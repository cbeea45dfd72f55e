"""Checks the options of a topic before they are written as JSON."""

from __future__ import annotations

import math
from typing import Final

from penstock.errors import BadRequestError
from penstock.meta.state.model import TieringPolicy

_OPTION_TYPES: Final = (str, int, float, bool, type(None))


def check_option(option: str, value: object) -> None:
    """Refuse what JSON has no word for, where it would say something else: no store takes it."""
    if isinstance(value, TieringPolicy):
        for field in TieringPolicy.__struct_fields__:
            check_option(f"{option}.{field}", getattr(value, field))
    elif isinstance(value, list | tuple):
        for one in value:
            check_option(option, one)
    elif not isinstance(value, _OPTION_TYPES):
        raise BadRequestError(f"{option}: {value!r} is no value of an option")
    elif isinstance(value, float) and not math.isfinite(value):
        raise BadRequestError(
            f"{option} must be a finite number, None (the node's default) or, for a retention, "
            f"-1 (no limit), got {value!r}"
        )
