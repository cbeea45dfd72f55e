"""The engines of a node by storage type, each opened when it is first needed and kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

from penstock.engine.contract import StorageEngine
from penstock.engine.plugins import plugin_name
from penstock.errors import BadRequestError, ClosedError, StoreError
from penstock.platform.log import get_logger

EngineFactory = Callable[[], StorageEngine]
PluginOpener = Callable[[str], StorageEngine]
"""Opens the engine of another package by the name of its entry point; see `plugins`."""

_log: Final = get_logger(__name__)


class EngineSet:
    def __init__(
        self, factories: Mapping[str, EngineFactory], open_plugin: PluginOpener | None = None
    ) -> None:
        self._factories: Final = dict(factories)
        self._open_plugin: Final = open_plugin
        self._opened: dict[str, StorageEngine] = {}
        self._opening: Final = threading.Lock()
        self._closed = False

    @property
    def storage_types(self) -> list[str]:
        """The built-in engines that can be opened here."""
        return sorted(self._factories)

    def get(self, storage_type: str) -> StorageEngine:
        """Return the engine of a storage type; open it if this is its first use."""
        engine = self._opened.get(storage_type)
        if engine is not None:
            return engine
        with self._opening:
            if self._closed:
                raise ClosedError("the engines were closed")
            engine = self._opened.get(storage_type)
            if engine is None:
                engine = self._opened[storage_type] = self._open(storage_type)
            return engine

    def _open(self, storage_type: str) -> StorageEngine:
        factory = self._factories.get(storage_type)
        if factory is not None:
            return factory()
        plugin = plugin_name(storage_type)
        if plugin is None or self._open_plugin is None:
            raise BadRequestError(
                f"this node has no engine {storage_type!r}; "
                f"expected one of {', '.join(self.storage_types)}"
            )
        return self._open_plugin(plugin)

    def opened(self) -> dict[str, StorageEngine]:
        with self._opening:
            return dict(self._opened)

    def close(self) -> None:
        """Close every engine, also when one of them fails; the first failure is raised."""
        with self._opening:
            self._closed = True
            failed: StoreError | OSError | None = None
            for storage_type, engine in self._opened.items():
                try:
                    engine.close()
                except (StoreError, OSError) as error:
                    _log.error("engine_not_closed", cause=error, storage_type=storage_type)
                    failed = failed or error
        if failed is not None:
            raise failed
