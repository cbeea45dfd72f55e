"""Why a client's call failed."""

from __future__ import annotations

from penstock.brokers.mqtt.wire.packets import Properties
from penstock.brokers.mqtt.wire.reason_codes import ReasonCode
from penstock.errors import RequestError, RetryableError


class RefusedError(RequestError):
    """The server refused a connection, a publish or a subscription."""

    def __init__(self, what: str, reason_code: int, properties: Properties | None = None) -> None:
        self.reason_code = reason_code
        try:
            name = ReasonCode(reason_code).name.lower().replace("_", " ")
        except ValueError:
            name = "unknown reason"
        text = f"{what} was refused: {name} (0x{reason_code:02x})"
        if properties is not None and properties.reason_string:
            text = f"{text}: {properties.reason_string}"
        super().__init__(text)


class ConnectionLostError(RetryableError):
    """The connection ended before the server answered."""
