"""Relations between topic filters and topic names.

    matches("a/+/c", "a/b/c")      a name that the filter selects
    covers("a/#", "a/+/c")         every name of the second filter is one of the first
    overlaps("a/+", "+/b")         some name belongs to both filters

Filters that begin with a wildcard select no name that begins with `$`.
"""

from __future__ import annotations

from typing import Final

SHARE_PREFIX: Final = "$share/"
QUEUE_PREFIX: Final = "$queue/"
EXCLUSIVE_PREFIX: Final = "$exclusive/"
DELAYED_PREFIX: Final = "$delayed/"
REPLAY_PREFIX: Final = "$replay/"


def matches(topic_filter: str, name: str) -> bool:
    """Return whether the filter selects the topic name."""
    if name.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    return _covers(topic_filter.split("/"), name.split("/"))


def covers(outer: str, inner: str) -> bool:
    """Return whether every name that `inner` selects is selected by `outer`."""
    if inner.startswith("$") and outer[:1] in ("+", "#"):
        return False
    return _covers(outer.split("/"), inner.split("/"))


def overlaps(first: str, second: str) -> bool:
    """Return whether some topic name is selected by both filters."""
    if first[:1] in ("+", "#") and second.startswith("$"):
        return False
    if second[:1] in ("+", "#") and first.startswith("$"):
        return False
    left, right = first.split("/"), second.split("/")
    for level in range(max(len(left), len(right))):
        one = left[level] if level < len(left) else None
        other = right[level] if level < len(right) else None
        if one == "#" or other == "#":
            return True  # `#` also selects the parent level: the shorter filter may end here
        if one is None or other is None:
            return False
        if one not in (other, "+") and other != "+":
            return False
    return True


def inner_filter(topic_filter: str) -> str:
    """Return the filter whose messages a subscription receives: without the prefixes
    `$share/{group}/`, `$queue/`, `$exclusive/` and `$replay/{start}/`."""
    while True:
        for prefix, levels in _PREFIX_LEVELS:
            if topic_filter.startswith(prefix):
                topic_filter = topic_filter.split("/", levels)[-1]
                break
        else:
            return topic_filter


def inner_name(topic: str) -> str:
    """Return the topic that a message is published to: without the prefix `$delayed/{seconds}/`."""
    return topic.split("/", 2)[-1] if topic.startswith(DELAYED_PREFIX) else topic


_PREFIX_LEVELS: Final = (
    (SHARE_PREFIX, 2),
    (QUEUE_PREFIX, 1),
    (EXCLUSIVE_PREFIX, 1),
    (REPLAY_PREFIX, 2),
)


def _covers(outer: list[str], inner: list[str]) -> bool:
    for level, part in enumerate(outer):
        if part == "#":
            return True
        if level == len(inner):
            return False
        if part == "+":
            if inner[level] == "#":
                return False
        elif part != inner[level]:
            return False
    return len(outer) == len(inner)
