"""File descriptors: as many as the system allows, and enough of them kept for the store's files.

A socket and a file take the same descriptors. Without a reserve, idle connections could take the
last one, and the log could not go on to its next file.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.platform.log import get_logger
from penstock.settings import Settings

WANTED_MAX: Final = 1 << 20
RESERVE_MAX: Final = 4_096
"""For files, and for connections to the other ports."""
CONNECTIONS_MIN: Final = 16

_log: Final = get_logger(__name__)


def raise_limit() -> int | None:
    """Raise the soft limit of descriptors to the hard one; return what it is then, or None where
    there is no such limit."""
    try:
        import resource
    except ImportError:  # Windows has none
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_MAX if hard == resource.RLIM_INFINITY else min(hard, WANTED_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return None if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("descriptors_not_raised", soft=soft, hard=hard, reason=str(error))
        return soft
    return wanted


def fit_connections(settings: Settings, limit: int | None) -> Settings:
    """Return settings whose connections leave descriptors for files below `limit`."""
    if limit is None:
        return settings
    reserve = min(RESERVE_MAX, limit // 2)
    asked = settings.kafka.connections_max
    connections = min(asked, max(CONNECTIONS_MIN, limit - reserve))
    if connections < asked:
        _log.warning(
            "connections_fitted",
            descriptors=limit,
            kept_for_files=reserve,
            connections_max=connections,
            asked=asked,
            hint="raise the hard limit of open files (ulimit -Hn)",
        )
    else:
        _log.info("descriptors", limit=limit, kept_for_files=reserve, connections_max=connections)
    return replace(settings, kafka=replace(settings.kafka, connections_max=connections))
