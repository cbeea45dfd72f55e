"""How a topic's tier is spoken of by names and words, as on a command line.

    tiering                           on, off, or none: as the node's settings say
    tiering.upload_interval_ms, …     one field of `TieringPolicy`; the others stay

A topic of which a field is named has a tier from then on, unless it was switched off. Switched off,
it keeps what its policy said, for when it is switched on again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.adapter.topics.option_values import check_unicode, check_word
from penstock.errors import BadRequestError, TierSetupError
from penstock.meta import STORAGE_LEVELS, UPLOADERS, TieringPolicy
from penstock.tiered.providers import check_new_address

TIERING: Final = "tiering"
PREFIX: Final = f"{TIERING}."
OFF: Final = "DISABLE"
"""RocketMQ's name for a storage level without a tier."""
FIELDS: Final = TieringPolicy.__struct_fields__
NAMES: Final = frozenset(PREFIX + field for field in FIELDS)
_KNOWN: Final = {"storage_level": STORAGE_LEVELS, "uploader": UPLOADERS}
_WORDS: Final[Mapping[object, bool]] = {"on": True, "off": False, True: True, False: False}


def change_policy(before: TieringPolicy | None, options: Mapping[str, object]) -> object:
    """Return what `options`, those that speak of the tier, make of a topic's policy: its fields in
    their stored order, not checked yet; or None."""
    policy: object = before
    if TIERING in options:
        given = options[TIERING]
        is_word = isinstance(given, str | bool)
        policy = _switched(before, given) if is_word else given
    if not isinstance(policy, TieringPolicy | list | tuple | None):
        raise BadRequestError(
            f"{TIERING} is a TieringPolicy, on, off or none, not {type(policy).__name__}"
        )
    named = {name: value for name, value in options.items() if name in NAMES}
    if not named:
        # As its fields, which are checked: a structure would be taken for right as it is.
        is_policy = isinstance(policy, TieringPolicy)
        return [getattr(policy, field) for field in FIELDS] if is_policy else policy
    for name, value in named.items():
        check_unicode(name, value)
    if policy is not None and not isinstance(policy, TieringPolicy):
        raise BadRequestError("a topic's tiering is given whole or by the names of its fields")
    fields = _fields(policy)
    fields.update({name.removeprefix(PREFIX): value for name, value in named.items()})
    return [fields[field] for field in FIELDS]


def check_policy(before: TieringPolicy | None, after: TieringPolicy | None) -> None:
    """Raise `BadRequestError` for words that there are not, and for an address that no tier can
    have. One that stays as it was is let through, so that a topic that has it can be altered, and
    its tier switched off."""
    if after is None or after == before:
        return
    for field, known in _KNOWN.items():
        check_word(PREFIX + field, getattr(after, field), known, known)
    if not after.provider:
        return
    is_as_before = before is not None and before.provider == after.provider
    is_switched_on = after.storage_level != OFF and (before is None or before.storage_level == OFF)
    if is_as_before and not is_switched_on:
        return
    try:
        check_new_address(after.provider)
    except TierSetupError as error:
        raise BadRequestError(f"{PREFIX}provider: {error}") from error


def _switched(before: TieringPolicy | None, given: object) -> TieringPolicy:
    if given not in _WORDS:
        raise BadRequestError(f"tiering is on, off or none, not {given!r}")
    fields = _fields(before)
    if not _WORDS[given]:
        fields["storage_level"] = OFF
    elif fields["storage_level"] == OFF:
        fields["storage_level"] = TieringPolicy().storage_level
    return TieringPolicy(**fields)  # type: ignore[arg-type]  # they are those of a policy


def _fields(policy: TieringPolicy | None) -> dict[str, object]:
    policy = policy if policy is not None else TieringPolicy()
    return {field: getattr(policy, field) for field in FIELDS}


def shown_policy(policy: TieringPolicy) -> list[tuple[str, str]]:
    """Return the options that make this policy, by name, without what says nothing."""
    shown = [(TIERING, "off" if policy.storage_level == OFF else "on")]
    for field in FIELDS:
        value = getattr(policy, field)
        if value not in (None, "") and not (field == "storage_level" and value == OFF):
            shown.append((PREFIX + field, str(value)))
    return shown
