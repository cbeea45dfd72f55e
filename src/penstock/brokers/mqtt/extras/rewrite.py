"""Topic rewriting: rules change the names that clients use.

    filter = "old/+/#"   pattern = "old/([^/]+)/(.*)"   topic = "plants/$1/$2"

The first rule applies whose action fits, whose filter covers the topic or filter, and whose regular
expression matches the whole of it. The prefix of a shared, exclusive or replaying subscription
stays; the filter after it is rewritten. A result that is not a valid name is not used.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from penstock.brokers.mqtt.extras.client_names import VARIABLES, fill_in
from penstock.brokers.mqtt.policy.filters import covers, inner_filter
from penstock.brokers.mqtt.protocol.hooks import Client
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.validation import check_filter, check_topic_name
from penstock.errors import SettingsError
from penstock.settings import MqttRewriteRule

CACHED_MAX: Final = 4_096
_GROUP: Final = re.compile(r"\$(\d)")


class _Rule:
    def __init__(self, rule: MqttRewriteRule) -> None:
        try:
            check_filter(rule.filter)
            self.pattern: Final = re.compile(rule.pattern)
        except (re.error, ProtocolError) as error:
            raise SettingsError(
                f"mqtt_features.rewrite: {rule.filter!r}, {rule.pattern!r}: {error}"
            ) from error
        groups = [int(number) for number in _GROUP.findall(rule.topic)]
        if groups and max(groups) > self.pattern.groups:
            raise SettingsError(
                f"mqtt_features.rewrite: {rule.topic!r} names group {max(groups)}, but "
                f"{rule.pattern!r} has {self.pattern.groups}"
            )
        self.filter: Final = rule.filter
        self.actions: Final = (
            ("publish", "subscribe") if rule.action == "all" else (str(rule.action),)
        )
        self.template: Final = rule.topic

    def apply(self, topic: str) -> str | None:
        """Return the template with the groups filled in; None: the rule does not apply."""
        if not covers(self.filter, topic):
            return None
        found = self.pattern.fullmatch(topic)
        if found is None:
            return None
        return _GROUP.sub(lambda group: found[int(group[1])] or "", self.template)


class TopicRewriter:
    def __init__(self, rules: Sequence[MqttRewriteRule]) -> None:
        self._rules: Final = [_Rule(rule) for rule in rules]
        self._cache: Final[OrderedDict[tuple[str, str], str | None]] = OrderedDict()

    @property
    def is_active(self) -> bool:
        return bool(self._rules)

    def publish(self, client: Client, topic: str) -> str:
        return self._rewrite(client, "publish", topic)

    def subscribe(self, client: Client, topic_filter: str) -> str:
        inner = inner_filter(topic_filter)
        prefix = topic_filter[: len(topic_filter) - len(inner)]
        return prefix + self._rewrite(client, "subscribe", inner)

    def _rewrite(self, client: Client, action: str, topic: str) -> str:
        template = self._template(action, topic)
        if template is None:
            return topic
        name = fill_in(template, client)
        if name is None:
            return topic
        try:
            check_topic_name(name) if action == "publish" else check_filter(name)
        except ProtocolError:
            return topic
        return name

    def _template(self, action: str, topic: str) -> str | None:
        """Return what the topic becomes for any client; regular expressions run once per topic."""
        key = (action, topic)
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        template = None
        # A variable in the client's own topic must not be replaced.
        if not any(variable in topic for variable in VARIABLES):
            candidates = (rule.apply(topic) for rule in self._rules if action in rule.actions)
            template = next((found for found in candidates if found is not None), None)
        self._cache[key] = template
        if len(self._cache) > CACHED_MAX:
            self._cache.popitem(last=False)
        return template
