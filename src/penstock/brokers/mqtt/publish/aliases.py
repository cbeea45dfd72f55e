"""Topic aliases of one client (MQTT 5, 3.3.2.3.4): numbers in place of topic names."""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode


class TopicAliases:
    __slots__ = ("_maximum", "_topics")

    def __init__(self, maximum: int) -> None:
        """`maximum` is the highest alias that the client may use; 0: none."""
        self._maximum: Final = maximum
        self._topics: Final[dict[int, str]] = {}

    def resolve(self, alias: int, topic: str) -> str:
        """Return the topic of a publish with an alias; a topic sets the alias."""
        if not 1 <= alias <= self._maximum:
            raise ProtocolError(
                ReasonCode.TOPIC_ALIAS_INVALID,
                f"topic alias {alias}; from 1 to {self._maximum} are allowed",
            )
        if topic:
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"topic alias {alias} has no topic")
        return known
