"""Fork guard: an embedded store stays with the process that opened it.

A child of `fork` has the parent's files and mappings, but not its threads, and locks in an unknown
state: the parent would overwrite the child's writes, and waits could hang. In a child, every call
to the backend of an embedded store raises `LockedError`, and closing it does nothing.
"""

from __future__ import annotations

import os
from typing import Final, NoReturn
from weakref import WeakSet

from penstock.errors import LockedError


class ForkedBackend:
    """Replaces the class of a backend in a child."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise LockedError(
            f"this store was opened before the fork of this process ({os.getpid()}): open another "
            "store after the fork, or share one through a server (`penstock serve` and "
            "`penstock.connect`)"
        )

    def close(self) -> None:
        """Nothing to close in a child."""


_backends: Final[WeakSet[object]] = WeakSet()


def disown_in_children(backend: object) -> None:
    """Disable `backend` in every child forked from now on."""
    _backends.add(backend)


def _disown() -> None:
    inherited = tuple((backend, dict(vars(backend))) for backend in _backends)
    for backend, _ in inherited:
        backend.__class__ = ForkedBackend
        vars(backend).clear()  # an attribute would hide the error
    if inherited:
        _end_without_databases(inherited)


def _end_without_databases(inherited: object) -> None:
    """Keep the child's exit from destroying RocksDB: it would wait for threads that only the parent
    has, or crash. Its objects are never freed, and its exit handler does not run."""
    import ctypes  # only children that inherit a store need it

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # what is registered last runs first
        libc.on_exit(libc._exit, None)
        libc.on_exit(libc.fcloseall, None)


os.register_at_fork(after_in_child=_disown)
