"""Tiers by URL: the interface of the package to object stores.

    memory://name                 objects of this process
    file:///var/lib/tier          a directory
    s3://bucket/prefix            also gs:// and az://, through obstore (`pip install penstock[s3]`)
    anything://…                  a provider that another package registers as an entry point of the
                                  group `penstock.tier_providers`, by the URL's scheme: a callable
                                  that takes the URL and the options and returns a `TierProvider`

`rocketmq+file://` is another layout, not another provider: see `penstock.tiered.RocketMqTier`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from penstock.errors import StoreError, TierSetupError
from penstock.settings import redact
from penstock.tiered.providers.contract import (
    Blocks,
    ObjectBytes,
    ObjectInfo,
    ObjectMissingError,
    TierProvider,
    get_range_into,
    get_range_summed,
    path_of,
)
from penstock.tiered.providers.memory import MemoryProvider
from penstock.tiered.providers.posix import PosixProvider
from penstock.tiered.providers.prefixed import PrefixedProvider
from penstock.tiered.providers.retrying import RetryingProvider

ROCKETMQ: Final = "rocketmq+file"
ENTRY_POINTS: Final = "penstock.tier_providers"
_AZURE: Final = frozenset({"az", "abfs", "abfss"})
OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", *_AZURE})
_OWN: Final = frozenset({"memory", "file", *OBJECT_STORES})
_ANY_ACCOUNT: Final = {"account_name": "any"}
"""Azure's addresses may do without the account, which the environment says."""
_UNWRITABLE: Final = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and halves of characters."""

__all__ = [
    "OBJECT_STORES",
    "Blocks",
    "ObjectBytes",
    "ObjectInfo",
    "ObjectMissingError",
    "TierProvider",
    "check_address",
    "check_new_address",
    "get_range_into",
    "get_range_summed",
    "open_provider",
    "path_of",
]


def open_provider(url: str, options: Mapping[str, str] | None = None) -> TierProvider:
    """Return the provider for a tier's URL; raise `TierSetupError` for an invalid one."""
    return RetryingProvider(_open_plain(url, options or {}))


def _open_plain(url: str, options: Mapping[str, str]) -> TierProvider:
    parts = _parse(url)
    scheme = parts.scheme.lower()
    if scheme == "memory":
        provider: TierProvider = MemoryProvider(parts.netloc)
        prefix = parts.path.strip("/")
        return PrefixedProvider(provider, prefix) if prefix else provider
    if scheme == "file":
        create = options.get("create", "true") != "false"
        return PosixProvider(unquote(parts.path), create=create)
    if scheme in OBJECT_STORES:
        from penstock.tiered.providers.object_store import ObjectStoreProvider

        return ObjectStoreProvider(url, options)
    for point in entry_points(group=ENTRY_POINTS, name=scheme):
        return _open_foreign(url, options, point)
    raise _unknown(url)


def _open_foreign(url: str, options: Mapping[str, str], point: EntryPoint) -> TierProvider:
    try:
        provider: TierProvider = point.load()(url, dict(options))
    except StoreError:
        raise
    except Exception as error:
        raise TierSetupError(f"{redact(url)}: {point.value} cannot open it: {error}") from error
    return provider


def check_address(url: str) -> None:
    """Raise `TierSetupError` for an address that no tier can have. Opens no
    connection and creates nothing: the first use shows whether directory or bucket exist."""
    scheme = _parse(url).scheme.lower()
    if scheme not in _OWN and not entry_points(group=ENTRY_POINTS, name=scheme):
        raise _unknown(url)
    if scheme in OBJECT_STORES:
        from penstock.tiered.providers.object_store import ObjectStoreProvider

        try:
            lacks_account = scheme in _AZURE and "@" not in url
            ObjectStoreProvider(url, _ANY_ACCOUNT if lacks_account else {}).close()
        except TierSetupError as error:
            raise TierSetupError(f"{error}; addresses are {scheme}://bucket/prefix") from error


def check_new_address(url: str) -> None:
    """The same for an address that nothing is kept at yet: nor may it have what would be lost on
    the way, or what is passed over when it is opened."""
    if _UNWRITABLE.search(url):
        raise TierSetupError(
            f"{redact(url)!r}: the address of a tier must not contain control characters or "
            "surrogates"
        )
    check_address(url)
    if _parse(url).scheme.lower() in _OWN and ("?" in url or "#" in url):
        raise TierSetupError(
            f"{redact(url)}: the address of a tier must not have a query (?) or a fragment (#)"
        )


def _parse(url: str) -> SplitResult:
    """Return the parts of an address; reject one of a known scheme that is incomplete."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise _unknown(url) from error
    scheme = parts.scheme.lower()
    if scheme == "memory" and not parts.netloc:
        raise TierSetupError(f"{redact(url)}: the name is missing; write memory://NAME")
    if scheme == "file":
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
            raise TierSetupError(
                f"{redact(url)}: the path must be absolute, as in file:///var/lib/tier"
            )
    if scheme in OBJECT_STORES and not parts.netloc:
        raise TierSetupError(
            f"{redact(url)}: the bucket is missing; write {scheme}://bucket/prefix"
        )
    return parts


def _unknown(url: str) -> TierSetupError:
    if url.lower().startswith(f"{ROCKETMQ}:"):
        return TierSetupError(
            f"{url} is a tier in RocketMQ's own layout, whose files grow in place and have neither "
            "checksums nor a manifest: `penstock tier status`, `ls`, `verify` and `pull` read it, "
            "programs write queues of simple topics with "
            "penstock.tiered.RocketMqTier; "
            "a node, `gc`, `repair`, `restore` and `rebuild` need file:///directory or an object "
            "store"
        )
    return TierSetupError(
        f"{redact(url)!r} is not the address of a tier; use file:///directory, s3://bucket/prefix, "
        "gs://bucket/prefix, az://container/prefix or memory://name"
    )
