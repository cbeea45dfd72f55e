"""Tiers by URL.

    memory://name                 objects of this process
    file:///var/lib/tier          a directory
    s3://bucket/prefix            also gs:// and az://, through obstore (`pip install penstock[s3]`)
    anything://…                  a provider that another package registers as an entry point of the
                                  group `penstock.tier_providers`, by the URL's scheme: a callable
                                  that takes the URL and the options and returns a `TierProvider`

`rocketmq+file://` is another layout, not another provider: see `penstock.tiered.rocketmq`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock.errors import TierSetupError
from penstock.tiered.providers.contract import (
    ObjectBytes,
    ObjectInfo,
    ObjectMissingError,
    TierProvider,
)
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.providers.posix import PosixProvider
from penstock.tiered.providers.prefixed import PrefixedProvider
from penstock.tiered.providers.settling import SettlingProvider

ENTRY_POINTS: Final = "penstock.tier_providers"
OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "az", "abfs", "abfss"})

__all__ = [
    "ObjectBytes",
    "ObjectInfo",
    "ObjectMissingError",
    "TierProvider",
    "check_address",
    "open_provider",
]


def open_provider(url: str, options: Mapping[str, str] | None = None) -> TierProvider:
    """Return the provider for a tier's URL; raise `TierSetupError` for one that makes no sense."""
    return SettlingProvider(_open_plain(url, options or {}))


def _open_plain(url: str, options: Mapping[str, str]) -> TierProvider:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    if scheme == "memory":
        provider: TierProvider = MemoryProvider(parts.netloc)
        prefix = parts.path.strip("/")
        return PrefixedProvider(provider, prefix) if prefix else provider
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise TierSetupError(f"{url}: give an absolute path, as file:///var/lib/tier")
        create = options.get("create", "true") != "false"
        return PosixProvider(unquote(parts.path), create=create)
    if scheme in OBJECT_STORES:
        if not parts.netloc:
            raise TierSetupError(f"{url}: the bucket is missing, as in {scheme}://bucket/prefix")
        from penstock.tiered.providers.object_store import ObjectStoreProvider

        return ObjectStoreProvider(url, options)
    for point in entry_points(group=ENTRY_POINTS, name=scheme):
        found: TierProvider = point.load()(url, dict(options))
        return found
    raise _unknown(url)


def check_address(url: str) -> None:
    """Raise `TierSetupError` for a URL of a kind that there is not; nothing is opened."""
    scheme = urlsplit(url).scheme.lower()
    if scheme not in ("memory", "file", *OBJECT_STORES) and not entry_points(
        group=ENTRY_POINTS, name=scheme
    ):
        raise _unknown(url)


def _unknown(url: str) -> TierSetupError:
    return TierSetupError(
        f"{url!r} is no address of a tier; use file:///directory, s3://bucket/prefix, "
        "gs://bucket/prefix, az://container/prefix or memory://name"
    )
