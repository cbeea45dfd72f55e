"""Reports the state of this process to systemd, or to another service manager with its protocol.

The manager names a datagram socket in `NOTIFY_SOCKET`; without it nothing is sent. A report that
cannot be sent is logged and does not stop the process.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from penstock.platform.log import get_logger

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
_VARIABLE: Final = "NOTIFY_SOCKET"
_SEND_S: Final = 2.0

_log: Final = get_logger(__name__)


def notify(state: str, status: str = "") -> bool:
    """Send a state and a sentence for people; return whether a service manager received it."""
    path = os.environ.get(_VARIABLE, "")
    if not path:
        return False
    # A leading @ stands for the null byte of Linux's abstract names.
    address = f"\0{path[1:]}" if path.startswith("@") else path
    message = f"{state}\nSTATUS={status}" if status else state
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.settimeout(_SEND_S)
            sending.sendto(message.encode(), address)
    except (OSError, ValueError) as error:
        _log.warning("service_manager_not_notified", socket=path, state=state, reason=str(error))
        return False
    return True
