"""Reads the topics of a node from its directory, without a lock, beside the running node.

For readers of a node's files that want to name its topics. What is seen is what the node had
written at this moment; nothing is changed.
"""

from __future__ import annotations

from typing import Final

from rocksdict import AccessType, Options, Rdict

from penstock.errors import SetupError
from penstock.meta.state.metadata.rows import list_topics
from penstock.meta.state.model import Topic
from penstock.meta.state.view import MemoryView
from penstock.meta.storage import log_format as fmt

_GROUP: Final = 0
_TRIES: Final = 3
"""The node may replace a file between the moment it is listed and the moment it is opened."""


def read_topics(path: str) -> list[Topic]:
    """Return the topics that the metadata in `path` knows; raise `SetupError` when it cannot be
    read."""
    reason = ""
    for _ in range(_TRIES):
        try:
            return list(list_topics(_state(path), None))
        except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more precise
            reason = str(error)
    raise SetupError(f"the metadata in {path} cannot be read: {reason}")


def _state(path: str) -> MemoryView:
    families = {name: Options(raw_mode=True) for name in fmt.FAMILIES}
    database = Rdict(path, Options(raw_mode=True), families, AccessType.read_only(False))
    try:
        rows = database.get_column_family(fmt.META_STATE)
        view = MemoryView()
        applied = rows.get(fmt.applied_key(_GROUP))
        if applied is not None:
            generation = fmt.APPLIED.unpack_from(applied)[2]
            prefix = fmt.state_prefix(_GROUP, generation)
            found = rows.iter()
            found.seek(prefix)
            while found.valid() and found.key().startswith(prefix):
                view.put(found.key()[len(prefix) :], found.value())
                found.next()
        return view
    finally:
        database.close()
