"""Settings as they may be shown: without the secrets that addresses can carry.

Left out are: what precedes the @ of an address (except the container of `abfs://container@account`),
the values of parameters named as keys, tokens, passwords or signatures, in queries
(`?X-Amz-Signature=`) and in connection strings (`AccountKey=`), and the whole value of a setting
with such a name.
"""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "***"
_SECRET: Final = (
    r"[\w.%-]*(?:secret|passw|pwd|token|signature|credential|api[-_]?key|access[-_]?key|"
    r"account[-_]?key|private[-_]?key|shared[-_]?key)[\w.%-]*|sig|key|auth"
)
_NAMES: Final = re.compile(_SECRET, re.IGNORECASE)
_VALUES: Final = re.compile(rf"((?:^|[?&;#\s])(?:{_SECRET})=)[^&;#\s]*", re.IGNORECASE)
_USER: Final = re.compile(
    # Keys have slashes in them: what follows a colon, other than a port, goes to the last @.
    r"([a-z][a-z0-9+.-]*)://([^/?#\s@:]*:(?!\d+/)[^?#\s]*|[^/?#\s]*)@",
    re.IGNORECASE,
)
_CONTAINERS: Final = frozenset({"abfs", "abfss", "wasb", "wasbs"})
"""Of these the part in front of the @ is a container's name."""


def redact(text: str) -> str:
    """Return `text` without the secrets of addresses in it."""
    return _VALUES.sub(rf"\1{HIDDEN}", _USER.sub(_without_user, text))


def redact_setting(name: str, value: object) -> object:
    """Return the value of a setting as it may be shown; the path of a file is shown."""
    if isinstance(value, str):
        is_secret = _NAMES.fullmatch(name) is not None and not name.endswith("_file")
        return HIDDEN if value and is_secret else redact(value)
    if isinstance(value, list | tuple):
        return [redact_setting(name, item) for item in value]
    return value


def _without_user(match: re.Match[str]) -> str:
    scheme, user = match[1], match[2]
    if scheme.lower() in _CONTAINERS and ":" not in user:
        return match[0]
    return f"{scheme}://{HIDDEN}@"
