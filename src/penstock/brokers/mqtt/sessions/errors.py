"""Why a session cannot be opened."""

from __future__ import annotations

from penstock.errors import StoreError


class SessionTakenOverError(StoreError):
    """Another connection with the same client id has taken the session over meanwhile; the sink was
    disconnected already."""


class SessionLimitError(StoreError):
    """The node has as many sessions as it may have: reason code 0x97."""
