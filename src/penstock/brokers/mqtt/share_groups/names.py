"""Names of shared subscriptions: `$share/{group}/{filter}` and `$queue/{filter}`."""

from __future__ import annotations

from typing import Final, NamedTuple

SHARE_PREFIX: Final = "$share/"
QUEUE_PREFIX: Final = "$queue/"


class ShareName(NamedTuple):
    group: str
    """Empty: the one group of `$queue/{filter}`."""
    filter: str


def parse(text: str) -> ShareName | None:
    """Return the group and its filter; None: the text is not the name of a shared subscription."""
    if text.startswith(QUEUE_PREFIX):
        inner = text.removeprefix(QUEUE_PREFIX)
        return ShareName("", inner) if inner else None
    if not text.startswith(SHARE_PREFIX):
        return None
    group, slash, inner = text.removeprefix(SHARE_PREFIX).partition("/")
    if not (group and slash and inner) or "+" in group or "#" in group:
        return None
    return ShareName(group, inner)
