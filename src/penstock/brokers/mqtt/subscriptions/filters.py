"""Whether one filter matches one topic name, without a tree."""

from __future__ import annotations


def matches(topic_filter: str, topic: str) -> bool:
    """Return whether a filter matches a topic name."""
    if topic_filter == topic:
        return True
    if topic.startswith("$") and topic_filter[:1] in {"+", "#"}:
        return False
    levels = topic.split("/")
    wanted = topic_filter.split("/")
    for index, level in enumerate(wanted):
        if level == "#":
            return True
        if index >= len(levels) or level not in {"+", levels[index]}:
            return False
    return len(wanted) == len(levels)
