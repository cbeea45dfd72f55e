"""Settings from a file, the environment and the caller, checked as a whole.

Later ones win: the defaults, the TOML file, `PENSTOCK_SECTION__KEY` in the environment, the
caller's own (flags of the command, arguments of `penstock.open`). An unknown key is an error,
wherever it comes from: a misspelt setting must not be a silent default. Code takes the part of the
tree that it needs and never reads the environment itself.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final

import msgspec

from penstock.errors import SettingsError
from penstock.settings.redaction import HIDDEN, redact_setting
from penstock.settings.tree import SERVE, Settings

PREFIX: Final = "PENSTOCK_"
_BETWEEN: Final = "__"

_Sources = dict[tuple[str, str], str]
"""Where each key that was given comes from, for messages."""


# Built at import: msgspec must not inspect a type for the first time in two threads.
msgspec.json.Decoder(Settings)


def load_settings(
    path: str | None = None,
    *,
    base: Settings = SERVE,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Settings:
    """Return `base` with everything that the file, the environment (the process's own by default)
    and the caller say; raise `SettingsError` that names the key and where it was found."""
    tree = msgspec.to_builtins(base)
    sources: _Sources = {}
    if path is not None:
        _merge(tree, sources, _read_file(path), path)
    variables = os.environ if environment is None else environment
    for name in sorted(variables):
        if name.startswith(PREFIX) and _BETWEEN in name:
            section, _, key = name.removeprefix(PREFIX).lower().partition(_BETWEEN)
            _put(tree, sources, section, key, variables[name], f"environment variable {name}")
    _merge(tree, sources, _nested(overrides or {}), "argument")
    return _check(tree, sources)


def merge_settings(base: Settings, overrides: Mapping[str, object]) -> Settings:
    """Return `base` with the caller's changes, and nothing from outside."""
    return load_settings(base=base, environment={}, overrides=overrides)


def _read_file(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error


def _nested(overrides: Mapping[str, object]) -> dict[str, object]:
    """Accept `broker={"flush_disk_type": …}`, `broker__flush_disk_type=…` and `"broker.flush…"`."""
    tables: dict[str, object] = {}
    for name, value in overrides.items():
        section, between, key = name.replace(".", _BETWEEN).partition(_BETWEEN)
        given = {key: value} if between else value
        known = tables.get(section, {})
        if isinstance(known, dict) and isinstance(given, Mapping):
            tables[section] = {**known, **given}
        else:
            tables[section] = given
    return tables


def _merge(
    tree: dict[str, dict[str, object]],
    sources: _Sources,
    tables: Mapping[str, object],
    source: str,
) -> None:
    for section, table in tables.items():
        _check_section(tree, section, source)
        if not isinstance(table, Mapping):
            raise SettingsError(f"{source}: [{section}] must be a table of keys, got {table!r}")
        for key, value in table.items():
            _put(tree, sources, section, str(key), value, source)


def _put(
    tree: dict[str, dict[str, object]],
    sources: _Sources,
    section: str,
    key: str,
    value: object,
    source: str,
) -> None:
    _check_section(tree, section, source)
    if key not in tree[section]:
        elsewhere = [f"{name}.{key}" for name, keys in tree.items() if key in keys]
        meant = elsewhere or get_close_matches(key, tree[section], n=1)
        hint = f"; did you mean {meant[0]!r}?" if meant else ""
        raise SettingsError(f"{source}: unknown setting {section}.{key}{hint}")
    is_list = isinstance(getattr(getattr(SERVE, section), key), tuple)
    tree[section][key] = _listed(value) if is_list and isinstance(value, str) else value
    sources[section, key] = source


def _listed(text: str) -> object:
    """Return the values of a list that is given as text: in JSON, or with commas between. Text
    that begins as JSON and is malformed stays as it is, and is rejected as such."""
    if text.lstrip().startswith("["):
        try:
            return msgspec.json.decode(text, type=object)
        except msgspec.DecodeError:
            return text
    return [item.strip() for item in text.split(",") if item.strip()]


def _check_section(tree: Mapping[str, object], section: str, source: str) -> None:
    if section not in tree:
        close = get_close_matches(section, tree, n=1)
        hint = f"did you mean [{close[0]}]?" if close else f"there are {', '.join(tree)}"
        raise SettingsError(f"{source}: unknown section [{section}]; {hint}")


def _check(tree: dict[str, dict[str, object]], sources: _Sources) -> Settings:
    try:
        # What comes from the environment is text: "85" is the number, "true" the truth.
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        section, _, key = place.rstrip("`").partition("[")[0].partition(".")
        source = sources.get((section, key), "settings")
        if redact_setting(key, "any text") == HIDDEN:
            raise SettingsError(f"{source}: {section}.{key}: {reason}") from None
        given = tree.get(section, {}).get(key)
        raise SettingsError(f"{source}: {section}.{key} is {given!r}: {reason}") from error
    broker = settings.broker
    if broker.disk_space_warning_level_ratio < broker.disk_max_used_space_ratio:
        raise SettingsError(
            "broker.disk_space_warning_level_ratio is "
            f"{broker.disk_space_warning_level_ratio}, below disk_max_used_space_ratio "
            f"{broker.disk_max_used_space_ratio}: writes would be rejected before old files are "
            "deleted"
        )
    return settings
