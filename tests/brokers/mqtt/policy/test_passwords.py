"""Password hashes of Penstock and of Mosquitto, and the password file."""

from __future__ import annotations

import base64
import hashlib

import pytest

from penstock.brokers.mqtt.policy.passwords import (
    PasswordHash,
    check_user_name,
    hash_password,
    parse_hash,
    parse_password_file,
    with_user,
)
from penstock.errors import SettingsError

SALT = base64.b64encode(b"0123456789ab").decode()


def mosquitto_6(password: bytes) -> str:
    digest = hashlib.sha512(password + b"0123456789ab").digest()
    return f"$6${SALT}${base64.b64encode(digest).decode()}"


def mosquitto_7(password: bytes, iterations: int = 101) -> str:
    digest = hashlib.pbkdf2_hmac("sha512", password, b"0123456789ab", iterations)
    return f"$7${iterations}${SALT}${base64.b64encode(digest).decode()}"


@pytest.mark.parametrize("text", [mosquitto_6(b"secret"), mosquitto_7(b"secret")])
def test_hashes_of_mosquitto_are_verified(text: str) -> None:
    hashed = parse_hash(text)
    assert hashed.verify(b"secret")
    assert not hashed.verify(b"Secret")
    assert hashed.text() == text


def test_a_hash_of_our_own_survives_its_text_form() -> None:
    hashed = hash_password(b"secret")
    assert parse_hash(hashed.text()) == hashed
    assert hashed.verify(b"secret")
    assert not hashed.verify(b"")


def test_two_hashes_of_one_password_differ() -> None:
    assert hash_password(b"x").text() != hash_password(b"x").text()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("secret", "not hashed"),
        ("$argon2id$v=19$m=1$x$y", "not supported"),
        ("$6$onlysalt", "needs 2 fields"),
        ("$7$101$!!$!!", "not base64"),
        (f"$7$999999999${SALT}${SALT}", "not in the range"),
        (f"$6${SALT}${SALT}", "instead of 64"),
        (f"$scrypt$536870912$8$1${SALT}${SALT}", "not a power of two within"),
        (f"$scrypt$-1$8$1${SALT}${SALT}", "is not a number"),
    ],
)
def test_a_hash_that_cannot_be_used_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_hash(text)


def test_a_file_may_mix_the_forms_and_has_comments() -> None:
    text = f"# users\n\nalice:{hash_password(b'a').text()}\nbob:{mosquitto_7(b'b')}\n"
    users = parse_password_file(text, "passwd")
    assert set(users) == {"alice", "bob"}
    assert users["bob"].verify(b"b")


@pytest.mark.parametrize("line", ["alice", ":$6$x$y", "alice:plain"])
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(SettingsError, match="passwd:2"):
        parse_password_file(f"# users\n{line}\n", "passwd")


def test_a_user_who_is_there_twice_is_refused() -> None:
    line = f"alice:{mosquitto_6(b'x')}\n"
    with pytest.raises(SettingsError, match="twice"):
        parse_password_file(line + line, "passwd")


def test_a_user_is_added_replaced_and_removed() -> None:
    first, second = hash_password(b"1"), hash_password(b"2")
    text = with_user("# users\nbob:x\n", "alice", first)
    text = with_user(text, "alice", second)
    assert text == f"# users\nbob:x\nalice:{second.text()}\n"
    assert with_user(text, "alice", None) == "# users\nbob:x\n"


@pytest.mark.parametrize("name", ["", "a:b", "#a", "a\nb", "x" * 256])
def test_a_name_that_the_file_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(SettingsError):
        check_user_name(name)


def test_the_hash_is_a_value() -> None:
    assert isinstance(hash_password(b"x"), PasswordHash)
