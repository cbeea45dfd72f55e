"""The names of delayed messages: `$delayed/{seconds}/{topic}`.

`seconds` is a delay of at most 42,949,669 s, or above that the time at which the message is due, in
seconds since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.validation import check_topic_name

PREFIX: Final = "$delayed/"
DELAY_MAX_S: Final = 42_949_669
_DIGITS_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class DelayedTopic:
    topic: str
    due_ms: int


def parse_delayed(name: str, now_ms: int) -> DelayedTopic:
    """Return the topic and when a message for it is due; raise `ValueError` with the reason."""
    seconds, slash, topic = name.removeprefix(PREFIX).partition("/")
    if not slash or not topic:
        raise ValueError(f"{name[:100]!r} is not $delayed/SECONDS/TOPIC")
    if not seconds.isascii() or not seconds.isdigit() or len(seconds) > _DIGITS_MAX:
        raise ValueError(f"the delay {seconds[:20]!r} is not a number of seconds")
    if topic.startswith("$"):
        raise ValueError(f"a delayed message cannot be for {topic[:100]!r}")
    try:
        check_topic_name(topic)
    except ProtocolError as error:
        raise ValueError(str(error)) from error
    number = int(seconds)
    if number <= DELAY_MAX_S:
        return DelayedTopic(topic, now_ms + number * 1000)
    delay_ms = number * 1000 - now_ms
    if delay_ms > DELAY_MAX_S * 1000:
        raise ValueError(f"the delay is above {DELAY_MAX_S} s, the limit")
    return DelayedTopic(topic, max(now_ms, number * 1000))
