"""The password file and the file of access rules: read at the start, and again when they change.

A changed file that cannot be read, or has an error, is reported; the rules that were read before
stay in force.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from penstock.brokers.mqtt.policy.access_rules import AccessRules, parse_access_rules
from penstock.brokers.mqtt.policy.passwords import PasswordHash, parse_password_file
from penstock.errors import SettingsError
from penstock.platform.log import get_logger

T = TypeVar("T")
Stamp = tuple[int, int, int]
FILE_SIZE_MAX: Final = 64 << 20

_log: Final = get_logger(__name__)


class WatchedFile:
    """A file and what was parsed from it."""

    def __init__(self, path: str) -> None:
        self.path: Final = path
        self._stamp: Stamp | None = None

    def read(self) -> str:
        """Return the file's text; raise `SettingsError` if it cannot be read."""
        self._stamp = self._current()
        try:
            with open(self.path, "rb") as file:
                data = file.read(FILE_SIZE_MAX + 1)
        except OSError as error:
            raise SettingsError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(data) > FILE_SIZE_MAX:
            raise SettingsError(f"{self.path} has more than {FILE_SIZE_MAX} bytes")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SettingsError(f"{self.path} is not UTF-8: {error}") from error

    def has_changed(self) -> bool:
        return self._current() != self._stamp

    def _current(self) -> Stamp | None:
        try:
            status = os.stat(self.path)
        except OSError:
            return None
        return (status.st_mtime_ns, status.st_size, status.st_ino)


class AccessFiles:
    """Both files, and the revision of the rules."""

    def __init__(self, password_file: str, acl_file: str) -> None:
        """Read the files; raise `SettingsError` with the file, the line and the reason."""
        self._password_file: Final = WatchedFile(password_file) if password_file else None
        self._acl_file: Final = WatchedFile(acl_file) if acl_file else None
        self.users: dict[str, PasswordHash] | None = None
        """None: there is no password file."""
        self.rules = AccessRules()
        self.revision = 1
        self._read_users()
        self._read_rules()

    async def reload(
        self,
        run_blocking: Callable[[Callable[[], None]], Awaitable[None]],
        *,
        is_forced: bool = False,
    ) -> None:
        """Read the files that have changed, or all; the revision grows when the rules changed."""
        await run_blocking(lambda: self._reload(is_forced))

    def _reload(self, is_forced: bool) -> None:
        for file, read in (
            (self._password_file, self._read_users),
            (self._acl_file, self._read_rules),
        ):
            if file is None or not (is_forced or file.has_changed()):
                continue
            try:
                read()
            except SettingsError as error:
                _log.error("mqtt_access_file_refused", path=file.path, reason=str(error))
            else:
                self.revision += 1
                _log.info("mqtt_access_file_read", path=file.path, revision=self.revision)

    def _read_users(self) -> None:
        if self._password_file is not None:
            path = self._password_file.path
            self.users = parse_password_file(self._password_file.read(), path)

    def _read_rules(self) -> None:
        if self._acl_file is not None:
            path = self._acl_file.path
            self.rules = parse_access_rules(self._acl_file.read(), path)
