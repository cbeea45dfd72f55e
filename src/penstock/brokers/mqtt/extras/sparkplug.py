"""Sparkplug 3, "aware" broker: birth certificates are kept as retained messages.

    spBv1.0/G1/NBIRTH/E1      ──▶ $sparkplug/certificates/spBv1.0/G1/NBIRTH/E1
    spBv1.0/G1/DBIRTH/E1/D1   ──▶ $sparkplug/certificates/spBv1.0/G1/DBIRTH/E1/D1

The certificate has the same payload; the birth message itself is delivered unchanged.
"""

from __future__ import annotations

from typing import Final

CERTIFICATES: Final = "$sparkplug/certificates/"
_NAMESPACES: Final = ("spBv1.0/", "spAv1.0/")
_LEVELS: Final = {"NBIRTH": 4, "DBIRTH": 5}


def certificate_topic(topic: str) -> str | None:
    """Return the topic of the certificate that a birth message makes; None for other topics."""
    if not topic.startswith(_NAMESPACES):
        return None
    levels = topic.split("/")
    if len(levels) < 4 or _LEVELS.get(levels[2]) != len(levels):
        return None
    return CERTIFICATES + topic
