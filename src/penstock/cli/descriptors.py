"""File descriptor limits: raises the soft limit and reserves descriptors for the store's files.

Sockets and files share the limit. Without a reserve, idle connections could use the last descriptor
and the commit log could not open its next file.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from penstock.platform.log import get_logger
from penstock.settings import Settings

LIMIT_MAX: Final = 1 << 20
RESERVE_MAX: Final = 4_096
"""Descriptors for files and for connections to the other ports."""
CONNECTIONS_MIN: Final = 16

_log: Final = get_logger(__name__)


def raise_limit() -> int | None:
    """Raise the soft limit of descriptors to the hard limit; return the new limit, None if there is
    no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = LIMIT_MAX if hard == resource.RLIM_INFINITY else min(hard, LIMIT_MAX)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return None if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError) as error:
        _log.warning("descriptors_not_raised", soft=soft, hard=hard, reason=str(error))
        return soft
    return target


def fit_connections(settings: Settings, limit: int | None) -> Settings:
    """Return settings with `connections_max` of the front ends lowered so that files have
    descriptors left. Front ends that are served get the same number."""
    if limit is None:
        return settings
    reserve = min(RESERVE_MAX, limit // 2)
    kafka, mqtt = settings.kafka, settings.mqtt
    shares = kafka.enabled + mqtt.enabled
    share = max(CONNECTIONS_MIN, (limit - reserve) // max(shares, 1))
    asked = max(kafka.connections_max, mqtt.connections_max)
    connections = min(asked, share)
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
    return replace(
        settings,
        kafka=replace(kafka, connections_max=min(kafka.connections_max, share)),
        mqtt=replace(mqtt, connections_max=min(mqtt.connections_max, share)),
    )
