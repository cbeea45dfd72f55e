"""The rules that map MQTT topics to stored topics: `[[mqtt.map]]`, and the last rule.

    filter  plant/+/telemetry/#     topic  plant.{1}.telemetry
    plant/berlin/telemetry/a/b  ──▶  plant.berlin.telemetry

`{n}` stands for the text of the n-th wildcard, `{topic}` for the whole MQTT topic, both encoded by
`names`. From a stored name a rule gets the texts back, so that it knows which MQTT topics a stored
topic can have.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from penstock.brokers.mqtt.topics.filters import ANY_LEVEL, ANY_REST, captures, overlap
from penstock.brokers.mqtt.topics.names import (
    NAME_SIZE_MAX,
    decode_name,
    encode_name,
    fit_name,
    is_shortened,
)
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.validation import check_filter
from penstock.errors import SettingsError
from penstock.settings import MqttMapRule

LAST_RULE: Final = MqttMapRule(filter="#", topic="mqtt", partitions=8)
INTERNAL_PREFIX: Final = "__mqtt_"

_PLACE: Final = re.compile(r"\{(topic|[1-9][0-9]*)\}")
_LITERAL: Final = re.compile(r"[A-Za-z0-9._-]*")
_CAPTURED: Final = r"([A-Za-z0-9._-]*)"
_USABLE: Final = {"": "_", ".": "_2f", "..": "_2f_2f"}
"""In place of names that Kafka clients refuse."""
_WHOLE: Final = 0
"""In the list of places: the whole topic instead of a wildcard's text."""


class Rule:
    """One rule, compiled."""

    __slots__ = ("_parts", "_pattern", "_places", "levels", "settings")

    def __init__(self, settings: MqttMapRule, *, is_internal: bool = False) -> None:
        """Raise `SettingsError` when the filter or the name cannot be used."""
        self.settings: Final = settings
        if not is_internal:
            _check(settings)
        self.levels: Final = settings.filter.split("/")
        split = _PLACE.split(settings.topic)
        self._parts: Final = split[::2]
        """What stands between the places."""
        self._places: Final = [_WHOLE if place == "topic" else int(place) for place in split[1::2]]
        wildcards = sum(level in {ANY_LEVEL, ANY_REST} for level in self.levels)
        if any(place > wildcards for place in self._places):
            raise SettingsError(
                f"mqtt.map: topic {settings.topic!r} names a wildcard that the filter "
                f"{settings.filter!r} does not have; it has {wildcards}"
            )
        self._pattern: Final = re.compile(_CAPTURED.join(re.escape(part) for part in self._parts))

    @property
    def is_single(self) -> bool:
        """Whether the rule has one stored topic for all MQTT topics."""
        return not self._places

    def stored_topic(self, topic: str, levels: Sequence[str]) -> str | None:
        """Return the name of the stored topic of an MQTT topic; None: the filter does not match."""
        texts = captures(self.levels, levels)
        if texts is None:
            return None
        if self.is_single:
            return self.settings.topic
        out = [self._parts[0]]
        for place, part in zip(self._places, self._parts[1:], strict=True):
            out += [encode_name(topic if place == _WHOLE else texts[place - 1]), part]
        return _USABLE.get(name := "".join(out)) or fit_name(name)

    def may_store(self, stored: str) -> bool:
        """Say whether the rule can map a topic to this stored topic."""
        if self.is_single:
            return stored == self.settings.topic
        if is_shortened(stored) or stored in _USABLE.values():
            return True
        return self._pattern.fullmatch(stored) is not None

    def can_reach(self, stored: str, wanted: Sequence[str]) -> bool:
        """Say whether a stored topic of this rule can have messages that the filter `wanted`, given
        as levels, matches. May say yes for one that has none."""
        if not self.may_store(stored) or not overlap(self.levels, wanted):
            return False
        match = self._pattern.fullmatch(stored)
        if self.is_single or match is None or len(self._places) != 1:
            return True  # several captures need not split in one way only
        text = decode_name(match[1])
        if text is None:
            return True  # one of the names below that have no way back
        return overlap(self._narrowed(self._places[0], text), wanted)

    def _narrowed(self, place: int, text: str) -> list[str]:
        """Return the filter with one wildcard replaced by its text."""
        if place == _WHOLE:
            return text.split("/")
        levels: list[str] = []
        number = 0
        for level in self.levels:
            if level in {ANY_LEVEL, ANY_REST}:
                number += 1
                levels += text.split("/") if number == place else [level]
            else:
                levels.append(level)
        return levels

    def default_name(self, stored: str) -> str:
        """Return the MQTT topic of a record of this rule whose key names no MQTT topic of it."""
        if self.settings.name:
            return self.settings.name
        if not {ANY_LEVEL, ANY_REST} & set(self.levels):
            return self.settings.filter
        return stored.replace(".", "/")


def compile_rules(rules: Sequence[MqttMapRule]) -> list[Rule]:
    """Return the rules of the settings and the last one, which matches every topic."""
    return [Rule(rule) for rule in (*rules, LAST_RULE)]


def _check(rule: MqttMapRule) -> None:
    try:
        check_filter(rule.filter)
    except ProtocolError as error:
        raise SettingsError(f"mqtt.map: {error.text}") from error
    if rule.filter.startswith("$"):
        raise SettingsError(
            f"mqtt.map: filter {rule.filter!r} begins with $; such topics cannot be mapped"
        )
    literal = _PLACE.sub("", rule.topic)
    if not _LITERAL.fullmatch(literal):
        raise SettingsError(
            f"mqtt.map: topic {rule.topic!r} has characters other than letters, digits, '.', '_', "
            "'-' and the places {1}, {2}, … and {topic}"
        )
    if len(literal) > NAME_SIZE_MAX or literal in {".", ".."}:
        raise SettingsError(
            f"mqtt.map: topic {rule.topic!r} cannot be used; names have at most {NAME_SIZE_MAX} "
            "characters, and are not '.' or '..'"
        )
    if rule.topic.startswith(INTERNAL_PREFIX):
        raise SettingsError(
            f"mqtt.map: topic {rule.topic!r}: names that begin with {INTERNAL_PREFIX} are the "
            "front end's own"
        )


def internal_rule(settings: MqttMapRule) -> Rule:
    """Return the rule of a topic of the front end's own."""
    return Rule(settings, is_internal=True)
