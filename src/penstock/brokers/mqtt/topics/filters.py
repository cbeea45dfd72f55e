"""Topic filters level by level: whether one matches a topic, and whether two can match the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ANY_LEVEL: Final = "+"
ANY_REST: Final = "#"


def matches(topic_filter: str, topic: str) -> bool:
    """Say whether a filter matches a topic. Filters that begin with a wildcard match no topic that
    begins with `$` (MQTT 4.7.2)."""
    if topic.startswith("$") and topic_filter[:1] in {ANY_LEVEL, ANY_REST}:
        return False
    return captures(topic_filter.split("/"), topic.split("/")) is not None


def captures(pattern: Sequence[str], levels: Sequence[str]) -> list[str] | None:
    """Return the text that each wildcard of a filter stands for; None: the filter does not match.
    `#` stands for the remaining levels with the slashes between them."""
    texts: list[str] = []
    for number, level in enumerate(pattern):
        if level == ANY_REST:
            texts.append("/".join(levels[number:]))
            return texts
        if number >= len(levels):
            return None
        if level == ANY_LEVEL:
            texts.append(levels[number])
        elif level != levels[number]:
            return None
    return texts if len(pattern) == len(levels) else None


def overlap(first: Sequence[str], second: Sequence[str]) -> bool:
    """Say whether some topic matches both filters, given as levels."""
    for one, other in zip(first, second, strict=False):
        if ANY_REST in {one, other}:
            return True
        if one != other and ANY_LEVEL not in {one, other}:
            return False
    if len(first) == len(second):
        return True
    longer, shorter = (first, second) if len(first) > len(second) else (second, first)
    # `a/#` matches `a` as well.
    return len(longer) == len(shorter) + 1 and longer[-1] == ANY_REST
