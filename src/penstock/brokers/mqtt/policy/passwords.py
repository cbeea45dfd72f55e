"""Password hashes, and the password file.

    alice:$scrypt$16384$8$1$<salt>$<hash>     written by `penstock mqtt password`
    bob:$7$101$<salt>$<hash>                  Mosquitto, PBKDF2 with SHA-512
    carol:$6$<salt>$<hash>                    Mosquitto 1.x, one round of SHA-512

Salts and hashes are base64. A file may mix the forms, so that Mosquitto's file works unchanged. All
calls that hash take milliseconds on purpose: they run in the pool, never on the event loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from typing import Final

from penstock.errors import SettingsError

SALT_SIZE: Final = 16
HASH_SIZE: Final = 32
SCRYPT_N: Final = 1 << 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
_SCRYPT_MEMORY_MAX: Final = 64 << 20
_ITERATIONS_MAX: Final = 10_000_000
USERS_MAX: Final = 1_000_000
USER_NAME_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class PasswordHash:
    """One way to check a password: the scheme, its cost, the salt and the expected hash."""

    scheme: str
    cost: tuple[int, ...]
    salt: bytes
    expected: bytes

    def verify(self, password: bytes) -> bool:
        """Return whether this is the password. Takes milliseconds; compares in constant time."""
        return hmac.compare_digest(self._hash(password), self.expected)

    def _hash(self, password: bytes) -> bytes:
        if self.scheme == "6":
            return hashlib.sha512(password + self.salt).digest()
        if self.scheme == "7":
            return hashlib.pbkdf2_hmac("sha512", password, self.salt, self.cost[0])
        return _scrypt(password, self.salt, self.cost, len(self.expected))

    def text(self) -> str:
        """Return the hash as the password file has it."""
        parts = [self.scheme, *map(str, self.cost), _encode(self.salt), _encode(self.expected)]
        return "$" + "$".join(parts)


def hash_password(password: bytes) -> PasswordHash:
    """Return a hash of the password with a new salt."""
    salt, cost = secrets.token_bytes(SALT_SIZE), (SCRYPT_N, SCRYPT_R, SCRYPT_P)
    return PasswordHash("scrypt", cost, salt, _scrypt(password, salt, cost, HASH_SIZE))


def parse_hash(text: str) -> PasswordHash:
    """Return the hash that the text describes; raise `ValueError` with the reason."""
    if not text.startswith("$"):
        raise ValueError("it is not hashed: write it with `penstock mqtt password`")
    scheme, *parts = text[1:].split("$")
    numbers = {"6": 0, "7": 1, "scrypt": 3}.get(scheme)
    if numbers is None:
        raise ValueError(f"scheme ${scheme}$ is not supported: only $scrypt$, $7$ and $6$ are")
    if len(parts) != numbers + 2:
        raise ValueError(f"scheme ${scheme}$ needs {numbers + 2} fields, not {len(parts)}")
    cost = tuple(_cost(part) for part in parts[:numbers])
    salt, expected = _decode(parts[-2]), _decode(parts[-1])
    _check_cost(scheme, cost)
    if scheme in ("6", "7") and len(expected) != hashlib.sha512().digest_size:
        raise ValueError(f"the hash has {len(expected)} bytes instead of 64")
    if not 16 <= len(expected) <= 64:
        raise ValueError(f"the hash has {len(expected)} bytes instead of 16 to 64")
    return PasswordHash(scheme, cost, salt, expected)


def parse_password_file(text: str, path: str) -> dict[str, PasswordHash]:
    """Return the users of a password file; raise `SettingsError` with the line that is wrong."""
    users: dict[str, PasswordHash] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, hashed = line.rstrip().partition(":")
        if not separator or not name:
            raise SettingsError(f"{path}:{number}: not `user:hash`; remove the line or correct it")
        if name in users:
            raise SettingsError(f"{path}:{number}: user {name!r} is there twice; remove one line")
        try:
            users[name] = parse_hash(hashed)
        except ValueError as error:
            raise SettingsError(f"{path}:{number}: password of {name!r}: {error}") from error
        if len(users) > USERS_MAX:
            raise SettingsError(f"{path}: more than {USERS_MAX} users")
    return users


def check_user_name(name: str) -> None:
    """Raise `SettingsError` for a name that a password file cannot hold."""
    if not name or len(name) > USER_NAME_MAX:
        raise SettingsError(f"a user name has 1 to {USER_NAME_MAX} characters, not {len(name)}")
    if name.startswith("#") or not name.isprintable() or ":" in name:
        raise SettingsError(
            f"user name {name!r} begins with # or contains a colon or a control character; "
            "choose another name"
        )


def with_user(text: str, name: str, hashed: PasswordHash | None) -> str:
    """Return the password file's text with the user's line added, replaced, or removed (None)."""
    kept = [line for line in text.splitlines() if line.partition(":")[0] != name]
    if hashed is not None:
        kept.append(f"{name}:{hashed.text()}")
    return "".join(f"{line}\n" for line in kept)


def _scrypt(password: bytes, salt: bytes, cost: tuple[int, ...], size: int) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, dklen=size, maxmem=_SCRYPT_MEMORY_MAX)


def _check_cost(scheme: str, cost: tuple[int, ...]) -> None:
    """Refuse costs with which one connection attempt would occupy a thread or the memory."""
    if scheme == "7" and not 1 <= cost[0] <= _ITERATIONS_MAX:
        raise ValueError(f"{cost[0]} iterations are not in the range 1 to {_ITERATIONS_MAX}")
    if scheme == "scrypt":
        n, r, p = cost
        is_power = n > 1 and n & (n - 1) == 0
        if not is_power or not 1 <= r <= 32 or not 1 <= p <= 16 or 128 * n * r * 2 > 64 << 20:
            raise ValueError(f"scrypt cost {n}, {r}, {p} is not a power of two within 32 MiB")


def _cost(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise ValueError(f"cost {text!r} is not a number")
    return int(text)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("salt or hash is not base64") from error
