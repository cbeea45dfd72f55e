"""Access rules in the syntax of Mosquitto's `acl_file`, with a few more kinds of sections.

    topic read public/#              rules before the first section: clients without a user name
    user alice
    topic readwrite plant/+/state    alice may subscribe and publish
    topic deny plant/secret/#        a denial outranks every permission
    topic denyfilter #               Penstock only: no subscription to exactly this filter
    pattern readwrite dev/%c/#       all clients; %c is the client id, %u the user name
    client sensor-7                  Penstock only: by client id
    address 10.0.0.0/8               Penstock only: by network address
    superuser admin                  Penstock only: no rule applies to this user, whose password
                                     was checked

An access without a word is `readwrite`. With at least one rule everything else is denied; without
any rule everything is allowed.

A subscription is allowed if one rule covers its whole filter and no denial overlaps it. Mosquitto
accepts every subscription instead and filters each message.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final, Literal

from penstock.brokers.mqtt.policy.filters import (
    covers,
    inner_filter,
    inner_name,
    matches,
    overlaps,
)
from penstock.errors import SettingsError

Action = Literal["publish", "subscribe"]
RULES_MAX: Final = 100_000
_ACCESS: Final = {
    "read": (True, False),
    "write": (False, True),
    "readwrite": (True, True),
    "deny": (False, False),
}
_SECTIONS: Final = ("user", "client", "address")


@dataclass(frozen=True, slots=True)
class Principal:
    """The client whose access is checked."""

    client_id: str
    username: str | None = None
    address: str = ""
    is_superuser: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    filter: str
    can_read: bool
    can_write: bool
    is_pattern: bool = False
    is_exact: bool = False
    """The rule denies subscriptions with exactly this filter, and nothing else."""

    @property
    def is_denial(self) -> bool:
        return not self.can_read and not self.can_write

    def permits(self, action: Action) -> bool:
        return self.can_write if action == "publish" else self.can_read


@dataclass(slots=True)
class AccessRules:
    """The rules of one file."""

    anonymous: list[Rule] = field(default_factory=list)
    users: dict[str, list[Rule]] = field(default_factory=dict)
    clients: dict[str, list[Rule]] = field(default_factory=dict)
    addresses: list[tuple[IPv4Network | IPv6Network, list[Rule]]] = field(default_factory=list)
    patterns: list[Rule] = field(default_factory=list)
    superusers: set[str] = field(default_factory=set)
    count: int = 0

    def for_client(self, principal: Principal) -> ClientRules:
        """Return the rules of one client, with its names filled in."""
        if principal.is_superuser or not self.count:
            return ALLOW_ALL
        if principal.username is None:
            rules = list(self.anonymous)
        else:
            rules = list(self.users.get(principal.username, ()))
        rules += self.clients.get(principal.client_id, ())
        if self.addresses and principal.address:
            rules += self._of_address(principal.address)
        for pattern in self.patterns:
            filled = _fill_in(pattern.filter, principal)
            if filled is not None:
                rules.append(replace(pattern, filter=filled))
        return ClientRules(tuple(rules))

    def _of_address(self, address: str) -> list[Rule]:
        try:
            parsed = ip_address(address)
        except ValueError:
            return []
        return [rule for network, rules in self.addresses if parsed in network for rule in rules]


@dataclass(frozen=True, slots=True)
class ClientRules:
    """The rules that apply to one client; made when it connects and when the file changes."""

    rules: tuple[Rule, ...] = ()
    allows_all: bool = False

    def allows(self, action: Action, topic: str) -> bool:
        """Return whether the client may publish to the name or subscribe to the filter."""
        if self.allows_all:
            return True
        if action == "publish":
            return self._allows_name(inner_name(topic))
        return self._allows_filter(inner_filter(topic))

    def _allows_name(self, name: str) -> bool:
        is_allowed = False
        for rule in self.rules:
            if not rule.is_exact and matches(rule.filter, name):
                if rule.is_denial:
                    return False
                is_allowed = is_allowed or rule.can_write
        return is_allowed

    def _allows_filter(self, topic_filter: str) -> bool:
        is_allowed = False
        for rule in self.rules:
            if rule.is_exact:
                if rule.filter == topic_filter:
                    return False
            elif rule.is_denial:
                if overlaps(rule.filter, topic_filter):
                    return False
            elif rule.can_read and covers(rule.filter, topic_filter):
                is_allowed = True
        return is_allowed


ALLOW_ALL: Final = ClientRules(allows_all=True)


def parse_access_rules(text: str, path: str) -> AccessRules:
    """Return the rules of a file; raise `SettingsError` with the line that is wrong."""
    rules = AccessRules()
    section = rules.anonymous
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        try:
            section = _add_line(rules, section, word, rest)
        except ValueError as error:
            raise SettingsError(f"{path}:{number}: {error}") from error
        if rules.count > RULES_MAX:
            raise SettingsError(f"{path}: more than {RULES_MAX} rules")
    return rules


def _add_line(rules: AccessRules, section: list[Rule], word: str, rest: str) -> list[Rule]:
    """Add one line; return the section that the next rule belongs to."""
    if word in _SECTIONS:
        return _section(rules, word, rest)
    if word == "superuser":
        rules.superusers.add(_name(rest))
    elif word == "topic":
        section.append(_rule(rest, is_pattern=False))
    elif word == "pattern":
        rules.patterns.append(_rule(rest, is_pattern=True))
    else:
        raise ValueError(
            f"{word!r} is not a rule; write topic, pattern, user, client, address or superuser"
        )
    rules.count += 1
    return section


def _section(rules: AccessRules, word: str, name: str) -> list[Rule]:
    if word == "user":
        return rules.users.setdefault(_name(name), [])
    if word == "client":
        return rules.clients.setdefault(_name(name), [])
    section: list[Rule] = []
    rules.addresses.append((ip_network(name, strict=False), section))
    return section


def _name(text: str) -> str:
    if not text:
        raise ValueError("the name is missing")
    return text


def _rule(text: str, *, is_pattern: bool) -> Rule:
    first, _, rest = text.partition(" ")
    if first == "denyfilter" and rest.strip():
        _check_filter(rest.strip())
        return Rule(rest.strip(), False, False, is_pattern, is_exact=True)
    access = _ACCESS.get(first)
    if access is None or not rest.strip():
        access, topic_filter = _ACCESS["readwrite"], text
    else:
        topic_filter = rest.strip()
    _check_filter(topic_filter)
    return Rule(topic_filter, *access, is_pattern)


def _check_filter(topic_filter: str) -> None:
    if not topic_filter:
        raise ValueError("the topic filter is missing")
    levels = topic_filter.split("/")
    for index, level in enumerate(levels):
        if "#" in level and (level != "#" or index != len(levels) - 1):
            raise ValueError(f"filter {topic_filter!r}: # must be the whole last level")
        if "+" in level and level != "+":
            raise ValueError(f"filter {topic_filter!r}: + must be a whole level")


def _fill_in(pattern: str, principal: Principal) -> str | None:
    """Replace %c and %u; None if the client's name would change what the filter selects."""
    if "%c" in pattern:
        if _is_unsafe(principal.client_id):
            return None
        pattern = pattern.replace("%c", principal.client_id)
    if "%u" in pattern:
        if principal.username is None or _is_unsafe(principal.username):
            return None
        pattern = pattern.replace("%u", principal.username)
    return pattern


def _is_unsafe(name: str) -> bool:
    return not name or any(character in name for character in "+#/")
