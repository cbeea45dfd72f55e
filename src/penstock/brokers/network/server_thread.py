"""A thread with an event loop, which starts, fails or ends as a whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from penstock.errors import SetupError
from penstock.platform.log import get_logger

START_TIMEOUT_S: Final = 30.0

_log: Final = get_logger(__name__)


class ServerThread:
    """Runs `serve` on a loop of its own. `serve` gets an event that ends it, and a function that it
    calls when it is ready."""

    def __init__(
        self, name: str, serve: Callable[[asyncio.Event, Callable[[], None]], Awaitable[None]]
    ) -> None:
        self._name: Final = name
        self._serve: Final = serve
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started: Final = threading.Event()
        self._failure: BaseException | None = None
        self._thread: Final = threading.Thread(
            target=self._run, name=f"penstock-{name}", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "the thread was not started"
        return self._loop

    def start(self) -> None:
        """Return when `serve` is ready; raise `SetupError` when it failed before."""
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            self.stop()
        if self._failure is not None:
            raise SetupError(
                f"the front end {self._name} did not start: {self._failure}"
            ) from self._failure

    def stop(self) -> None:
        """End `serve`, and wait for it. May be called again, and before the start."""
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None and self._thread.is_alive():
            loop.call_soon_threadsafe(stopping.set)
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._main())
        except BaseException as error:  # noqa: BLE001 - raised by `start`, or logged
            self._failure = error
            if self._started.is_set():
                _log.error(f"{self._name}_server_failed", cause=error)
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self._serve(self._stopping, self._started.set)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop where it is installed; the extras of the front ends bring it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
