"""The secret that the nodes of a cluster share, from the settings or from a file of its own."""

from __future__ import annotations

from typing import Final

from penstock.errors import SettingsError
from penstock.settings.server_sections import NodeSettings

_SIZE_MAX: Final = 4_096


def read_secrets(node: NodeSettings) -> tuple[str, ...]:
    """Return the secrets, the one to use first; () when none is set. Raises `SettingsError`, which
    never shows one."""
    if node.secret and node.secret_file:
        raise SettingsError("node.secret and node.secret_file are both set; choose one")
    if not node.secret_file:
        return (node.secret,) if node.secret else ()
    try:
        with open(node.secret_file, encoding="utf-8", errors="replace") as file:
            text = file.read(_SIZE_MAX + 1)
    except OSError as error:
        raise SettingsError(
            f"node.secret_file {node.secret_file}: {error.strerror or error}"
        ) from error
    if len(text) > _SIZE_MAX:
        raise SettingsError(
            f"node.secret_file {node.secret_file} has more than {_SIZE_MAX} characters"
        )
    if not text.strip():
        raise SettingsError(f"node.secret_file {node.secret_file} is empty")
    return tuple(text.splitlines())
