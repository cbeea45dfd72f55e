"""A store that a child of `fork` inherited: it stays the parent's.

The child has the same files and mappings, but none of the threads that serve them, and the locks
as they were at that moment. What it wrote its parent would overwrite with its next record, and some
waits would never end. So in a child every backend of an embedded store refuses whatever is asked of
it, and closing it does nothing.
"""

from __future__ import annotations

import os
from typing import Final, NoReturn
from weakref import WeakSet

from penstock.errors import LockedError


class ForkedBackend:
    """What a backend becomes in a child."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LockedError(
            f"this store was opened before the fork of this process ({os.getpid()}): open another "
            "store after the fork, or share one through a server (`penstock serve` and "
            "`penstock.connect`)"
        )

    def close(self) -> None:
        """Nothing is the child's to close."""


_backends: Final[WeakSet[object]] = WeakSet()


def disown_in_children(backend: object) -> None:
    """Have `backend` refused in every child that is forked from now on."""
    _backends.add(backend)


def _disown() -> None:
    inherited = tuple(_backends)
    for backend in inherited:
        backend.__class__ = ForkedBackend
    if inherited:
        _end_without_databases(inherited)


def _end_without_databases(inherited: tuple[object, ...]) -> None:
    """Keep RocksDB from being torn down when the child ends: it would wait for threads that only
    the parent has, or crash. Its objects are never freed, and its exit handler is not reached."""
    import ctypes  # only children that inherit a store need it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # what is registered last runs first
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


os.register_at_fork(after_in_child=_disown)
