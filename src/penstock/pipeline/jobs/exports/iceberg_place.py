"""Names a table of Iceberg; needs no pyiceberg."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

TABLE: Final = "penstock.records"


class IcebergPlace(Struct, frozen=True):
    """Which table of which catalog. Settings may hold secrets, so no bookmark keeps them."""

    table: str = TABLE
    """`namespace.name`; both are created when they are missing."""
    catalog: str | None = None
    """Where the catalog is: `http(s)://…` for REST, otherwise of SQL (`sqlite:///…`,
    `postgresql://…`). By default a file of SQLite, `catalog.db` in the target."""
    settings: Mapping[str, str] = {}
    """More for the catalog, by pyiceberg's names: `warehouse`, `token`, `s3.endpoint`, …"""
