"""The blacklist and its copy in the topic `__mqtt_blacklist`."""

from __future__ import annotations

from typing import Final

from penstock.brokers.mqtt.extras.stored_table import StoredTable
from penstock.brokers.mqtt.policy.blacklist import (
    Blacklist,
    BlacklistEntry,
    decode_entry,
    encode_entry,
)
from penstock.errors import BadRequestError
from penstock.platform.clock import Clock
from penstock.platform.log import get_logger
from penstock.record import Record

TOPIC: Final = "__mqtt_blacklist"

_log: Final = get_logger(__name__)


class StoredBlacklist:
    def __init__(self, table: StoredTable, clock: Clock) -> None:
        self.blacklist: Final = Blacklist(clock)
        self._table: Final = table
        self._clock: Final = clock

    async def load(self) -> None:
        """Read the entries that have not expired."""
        async for record in self._table.records():
            kind, match, value = _parts(record.key)
            if record.value is None:
                self.blacklist.remove(kind, match, value)
                continue
            try:
                entry = decode_entry(record.value)
                if not entry.is_expired(self._clock.now_ms()):
                    self.blacklist.add(entry)
            except (ValueError, BadRequestError) as error:
                _log.warning("mqtt_blacklist_entry_refused", reason=str(error))

    async def add(self, entry: BlacklistEntry) -> None:
        """Add an entry; return when it is stored."""
        self.blacklist.add(entry)
        await self._table.put(Record(encode_entry(entry), _key(*entry.key)))

    async def remove(self, kind: str, match: str, value: str) -> bool:
        """Remove an entry; return whether there was one."""
        if not self.blacklist.remove(kind, match, value):
            return False
        await self._table.put(Record(None, _key(kind, match, value)))
        return True


def _key(kind: str, match: str, value: str) -> bytes:
    return f"{kind}\0{match}\0{value}".encode("utf-8", "surrogateescape")


def _parts(key: bytes | None) -> tuple[str, str, str]:
    kind, _, rest = (key or b"").decode("utf-8", "surrogateescape").partition("\0")
    match, _, value = rest.partition("\0")
    return kind, match, value
