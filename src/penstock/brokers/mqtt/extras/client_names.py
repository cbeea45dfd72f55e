"""The names of a client in templates: `${clientid}`, `${username}`, `${host}`."""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.protocol.hooks import Client

VARIABLES: Final = ("${clientid}", "${username}", "${host}")
_UNSAFE: Final = frozenset("+#/")


def fill_in(template: str, client: Client) -> str | None:
    """Replace the variables; None if a name is missing, or would add a level or a wildcard."""
    if "${" not in template:
        return template
    names = (client.client_id, client.principal or client.username, client.host)
    for variable, name in zip(VARIABLES, names, strict=True):
        if variable in template:
            if not name or not _UNSAFE.isdisjoint(name):
                return None
            template = template.replace(variable, name)
    return template
