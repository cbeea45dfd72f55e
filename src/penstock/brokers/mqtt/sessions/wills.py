"""`Wills`: publishes the wills of connections that were lost."""

from __future__ import annotations

import asyncio
from typing import Final

from penstock.brokers.mqtt.sessions.interface import WillPublisher
from penstock.brokers.mqtt.sessions.session import Session, WillRecord
from penstock.errors import StoreError
from penstock.platform.log import get_logger

ATTEMPTS: Final = 600
PAUSE_S: Final = 1.0

_log: Final = get_logger(__name__)


class Wills:
    """A will stays in the row of its session until it is stored. If the node ends in between, the
    receipt in the record shows to the recovery that it was."""

    def __init__(self) -> None:
        self.publisher: WillPublisher | None = None
        """Set before the first connection."""
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self.published = 0

    def publish(self, session: Session) -> None:
        """Publish the will of a session in the background."""
        will, session.will = session.will, None
        session.will_due_ms = 0
        if will is None:
            return
        session.publishing_will = will
        task = asyncio.get_running_loop().create_task(self._publish(session, will))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _publish(self, session: Session, will: WillRecord) -> None:
        for _ in range(ATTEMPTS):
            try:
                publisher = self.publisher
                if publisher is not None and await publisher.publish_will(session, will):
                    self.published += 1
                    break
            except StoreError as error:
                _log.warning("mqtt_will_not_stored", reason=str(error))
            await asyncio.sleep(PAUSE_S)
        if session.publishing_will is will:
            session.publishing_will = None
        session.mark_row_dirty()

    async def close(self) -> None:
        """Give up wills that are not stored yet; their rows are left for the next start."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=10.0)
