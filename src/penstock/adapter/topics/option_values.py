"""The checks of an option's value that a topic's and its tier's options share."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.errors import BadRequestError


def check_unicode(name: str, given: object) -> None:
    """Reject text that cannot be stored."""
    if isinstance(given, str):
        try:
            given.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(f"{name} is not Unicode: {error.reason}") from error


def check_word(name: str, given: str, known: frozenset[str], shown: Iterable[str]) -> None:
    """Reject an unknown value, and name the known ones."""
    if given not in known:
        raise BadRequestError(f"{name} is {given!r}; expected one of {', '.join(sorted(shown))}")
