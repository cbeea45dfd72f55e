"""`penstock.open`: the store of a directory, in this process."""

from __future__ import annotations

import os
import weakref

from penstock.api import EmbeddedBackend, Store
from penstock.node.node import Node
from penstock.settings import EMBEDDED, load_settings

__all__ = ["open"]


def open(path: str | os.PathLike[str], **settings: object) -> Store:  # noqa: A001 - like shelve.open
    """Open the store in a directory, created when there is none, and return it.

    Settings are those of docs/configuration.md, as `offsets__enable_cache=False` or
    `offsets={"enable_cache": False}`. The store is safe to use from many threads; only one process
    at a time can have it open (`LockedError`), and a child of `fork` does not share it. It is
    closed by `close`, by the end of a `with` block, or by the end of the program.
    """
    node = Node(path, load_settings(base=EMBEDDED, overrides=settings))
    backend = EmbeddedBackend(node)
    # The store and each of its topics and consumers hold the backend: the last one closes it.
    weakref.finalize(backend, _close_ours, node, os.getpid())
    return Store(backend)


def _close_ours(node: Node, opener: int) -> None:
    """Close a node with its last user, or at the end of its program; a child of `fork` that ends
    leaves it to its parent."""
    if os.getpid() == opener:
        node.close()
