"""What connections and protocols know of each other, and the address of a client."""

from __future__ import annotations

import typing
from typing import NamedTuple

from penstock.platform.addresses import with_port


class PeerAddress(NamedTuple):
    """The client's side of a connection; with a PROXY header, the address that the header names."""

    host: str
    port: int

    def __str__(self) -> str:
        return with_port(self.host, self.port)


class Protocol(typing.Protocol):
    """What a connection passes its bytes to."""

    def received(self, view: memoryview) -> int:
        """Process the bytes that wait; return how many are consumed. Called again with the rest
        and what follows it. `view` is only valid during this call."""
        ...

    def writable(self) -> None:
        """Unsent output fell below `unsent_high`."""
        ...

    def closed(self, reason: str) -> None:
        """The connection ended; called exactly once. Nothing can be sent any more."""
        ...


@typing.runtime_checkable
class TimedProtocol(Protocol, typing.Protocol):
    """A protocol that sets `Connection.silence_max_s`."""

    def timed_out(self) -> None:
        """The client sent nothing for `silence_max_s`; called with every sweep until the
        connection ends or receives something."""
        ...


class Stage(typing.Protocol):
    """A layer between the connection and the protocol that frames what is sent."""

    @property
    def holds(self) -> bool:
        """Whether bytes wait here for the protocol."""
        ...

    def claim_progress(self) -> bool:
        """Return whether the protocol consumed anything since the last call."""
        ...

    def header(self, size: int) -> bytes:
        """Return what precedes `size` bytes of the protocol."""
        ...

    def farewell(self) -> bytes:
        """Return what follows the last bytes of the protocol; empty: nothing."""
        ...
