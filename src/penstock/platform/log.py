"""Structured logging over the standard library's.

    _log = get_logger(__name__)
    _log.warning("torn_tail_cut", path=path, bytes_cut=size)

An event is a stable snake_case name; what varies is a field. Payloads, keys and credentials are
never fields. An error is logged once, where it is handled. As with any library, nothing is printed
until a program configures it: `configure` does so for the `penstock` command.

    12:30:01.250 warning  penstock.engine  torn_tail_cut path=commitlog/000 bytes_cut=93
    {"time":"2026-01-02T12:30:01.250Z","level":"warning","logger":"penstock.engine","event":…}
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from datetime import UTC, datetime
from typing import Final, TextIO

ROOT: Final = "penstock"
Value = str | int | float | bool | None
_QUOTED: Final = re.compile(r'[\x00-\x1f "=\\]')
"""Characters of a value that is written in quotes."""


class EventLogger:
    """A named source of events. Fields whose names this class uses itself are refused by Python."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: Value) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Value) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Value) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, *, cause: BaseException | None = None, **fields: Value) -> None:
        """Log an error; `cause` adds its type, its message and, below this line, its traceback."""
        self._emit(logging.ERROR, event, fields, cause)

    def _emit(
        self,
        level: int,
        event: str,
        fields: dict[str, Value],
        cause: BaseException | None = None,
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        self._logger.log(
            level, "%s", event, extra={"penstock_fields": fields}, exc_info=cause, stacklevel=3
        )


def get_logger(name: str) -> EventLogger:
    """Return the logger of a module; pass `__name__`."""
    return EventLogger(logging.getLogger(name))


class TextFormatter(logging.Formatter):
    """One line for people: time, level, source, event, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        clock = moment.strftime("%H:%M:%S.") + f"{moment.microsecond // 1000:03d}"
        pairs = "".join(f" {name}={_as_text(value)}" for name, value in _fields(record).items())
        line = f"{clock} {record.levelname.lower():<8} {record.name}  {record.getMessage()}{pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, for machines; times in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Value] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for name, value in _fields(record).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


def configure(
    *, level: str = "info", as_json: bool = False, stream: TextIO | None = None
) -> logging.Handler:
    """Send Penstock's events to `stream` (standard error); replaces an earlier configuration."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    logger = logging.getLogger(ROOT)
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    return handler


def configure_program(*, level: str, as_json: bool) -> None:
    """Do the same for a whole program: what libraries log, what Python warns of and what ends a
    thread comes in the same form, so that a collector of JSON lines meets nothing else."""
    handler = configure(level=level, as_json=as_json)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)
    log = get_logger(f"{ROOT}.uncaught")

    def report(error: BaseException | None, where: str) -> None:
        if error is not None:
            log.error("uncaught_exception", cause=error, where=where)

    sys.excepthook = lambda _kind, error, _trace: report(error, "main")
    threading.excepthook = lambda given: report(
        given.exc_value, given.thread.name if given.thread is not None else "thread"
    )


def _fields(record: logging.LogRecord) -> dict[str, Value]:
    fields: dict[str, Value] = dict(getattr(record, "penstock_fields", {}))
    if record.exc_info and record.exc_info[1] is not None:
        fields["error"] = type(record.exc_info[1]).__name__
        fields["reason"] = str(record.exc_info[1])
    return fields


def _as_text(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    return text if text and _QUOTED.search(text) is None else json.dumps(text, ensure_ascii=False)


# A library is silent until its user configures logging; without this, Python prints by itself.
logging.getLogger(ROOT).addHandler(logging.NullHandler())
