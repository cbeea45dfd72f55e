"""`penstock mqtt password`: add, change and remove users of a password file."""

from __future__ import annotations

import os
import sys
import tempfile
from getpass import getpass
from typing import Annotated

import typer

from penstock.brokers.mqtt.policy import (
    check_user_name,
    hash_password,
    parse_password_file,
    with_user,
)
from penstock.cli.output import print_line
from penstock.errors import BadRequestError


def password(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Password file.", show_default=False)],
    user: Annotated[str, typer.Argument(metavar="USER", help="User name.", show_default=False)],
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the user instead.", show_default=False)
    ] = False,
) -> None:
    """Set the password of a user in a password file; create the file if it is missing.

    The password is asked for, or read from stdin if that is not a terminal. A running node reads
    the changed file within seconds.

    penstock mqtt password /etc/penstock/passwords alice
    """
    check_user_name(user)
    text = _read(file)
    users = parse_password_file(text, file)
    if remove:
        if user not in users:
            raise BadRequestError(f"{file} has no user {user!r}")
        _replace(file, with_user(text, user, None))
        print_line(f"removed {user}")
        return
    given = _ask()
    _replace(file, with_user(text, user, hash_password(given)))
    print_line(f"{'changed' if user in users else 'added'} {user}")


def _ask() -> bytes:
    if not sys.stdin.isatty():
        given = sys.stdin.buffer.readline().rstrip(b"\r\n")
    else:
        given = getpass("Password: ").encode("utf-8", "surrogateescape")
        if getpass("Again: ").encode("utf-8", "surrogateescape") != given:
            raise BadRequestError("the passwords differ; nothing was changed")
    if not given:
        raise BadRequestError("the password is empty; nothing was changed")
    return given


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequestError(f"{file} cannot be read: {error}") from error


def _replace(file: str, text: str) -> None:
    """Write the file anew, so that a reader never sees a part of it; keep its mode and owner."""
    directory = os.path.dirname(os.path.abspath(file))
    try:
        descriptor, path = tempfile.mkstemp(dir=directory, prefix=".passwords-")
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        if os.path.exists(file):
            status = os.stat(file)
            os.chmod(path, status.st_mode & 0o777)
            if os.geteuid() == 0:
                os.chown(path, status.st_uid, status.st_gid)
        os.replace(path, file)
    except OSError as error:
        raise BadRequestError(f"{file} cannot be written: {error.strerror}") from error
