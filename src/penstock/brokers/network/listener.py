"""A listening socket: accepts connections, and pauses when the process cannot hold more."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from penstock.brokers.network.interface import PeerAddress
from penstock.brokers.network.limits import ListenerSettings
from penstock.errors import SetupError
from penstock.platform.addresses import bare_host, resolve, with_port
from penstock.platform.log import get_logger

BACKLOG: Final = 1024
ACCEPTED_PER_TURN: Final = 64
ACCEPT_PAUSE_S: Final = 1.0
_NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log: Final = get_logger(__name__)

Accepted = Callable[["Listener", socket.socket, PeerAddress], None]


class Listener:
    """Bound from the moment it is made; accepts between `start` and `stop`."""

    def __init__(self, name: str, settings: ListenerSettings) -> None:
        self.settings: Final = settings
        self._name: Final = name
        self._socket: Final = _listen(settings)
        self.host, self.port = self._socket.getsockname()[:2]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._accepted: Accepted | None = None
        self._failed: Callable[[], None] | None = None
        self._is_accepting = False
        self._is_held = False

    def start(
        self, loop: asyncio.AbstractEventLoop, accepted: Accepted, failed: Callable[[], None]
    ) -> None:
        """Pass connections to `accepted` on `loop`; `failed` counts connections that could not be
        accepted."""
        self._loop, self._accepted, self._failed = loop, accepted, failed
        self._resume()

    def hold(self, *, is_held: bool) -> None:
        """Accept nothing, or again: further clients wait in the backlog of the system."""
        self._is_held = is_held
        if is_held:
            self._pause()
        else:
            self._resume()

    def stop(self) -> None:
        """Accept nothing more; call it on the loop."""
        self._pause()
        self._loop = None

    def close(self) -> None:
        self._socket.close()

    def _pause(self) -> None:
        if self._is_accepting and self._loop is not None:
            self._is_accepting = False
            self._loop.remove_reader(self._socket.fileno())

    def _resume(self) -> None:
        if self._loop is not None and not self._is_accepting and not self._is_held:
            self._is_accepting = True
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._accepted is not None, "a listener that accepts was started"
        for _ in range(ACCEPTED_PER_TURN):
            try:
                connected, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_DESCRIPTORS:
                    raise
                self._wait_for_descriptors(error)
                return
            self._accepted(self, connected, PeerAddress(str(address[0]), int(address[1])))
            if not self._is_accepting:
                return

    def _wait_for_descriptors(self, error: OSError) -> None:
        """Without a pause the loop would spin: the connection stays in the backlog."""
        assert self._loop is not None, "a listener that accepts was started"
        assert self._failed is not None, "a listener that accepts was started"
        _log.error(f"{self._name}_accept_failed", cause=error)
        self._failed()
        self._pause()
        self._loop.call_later(ACCEPT_PAUSE_S, self._resume)


def _listen(settings: ListenerSettings) -> socket.socket:
    host = bare_host(settings.host)
    family, address = resolve(host, settings.port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SetupError(
            f"{settings.clients} clients cannot be served on {with_port(host, settings.port)}: "
            f"{error.strerror}; choose {settings.settings_names}"
        ) from error
    listener.setblocking(False)
    return listener
