"""The keys of a node: the secret that it shares with its cluster, and the tokens for joins.

The key of a cluster is, in this order:

  1. `node.secret` or the lines of `node.secret_file`: the first one is used to prove, any of them
     is accepted, so that a secret can be replaced node by node
  2. the key that the founder generated, which every node got when it joined
  3. of a cluster that began before there were keys: a key derived from the cluster id, which is
     weak, and logged as such at every start

A join token is bound to the node's id, its address, the incarnation that it replaces and a time:
it is used up as soon as the node has joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.msgpack import Decoder, Encoder

from penstock.errors import BadRequestError, SettingsError
from penstock.meta.identifiers import ULID_RANDOM_SIZE, make_ulid, parse_ulid
from penstock.meta.raft.network.handshake import KEY_SIZE, commitment, mac_of
from penstock.meta.raft.network.messages import (
    NONCE_SIZE,
    ConnectRequest,
    JoinRequest,
    Opening,
    StatusRequest,
)
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.platform.log import get_logger

_log: Final = get_logger(__name__)

SECRET_CHARACTERS_MIN: Final = 16
TOKEN_SECONDS: Final = 3_600
_SECRETS_MAX: Final = 8
_TOKEN_KEY_SIZE: Final = 20
_TOKEN_PARTS: Final = 4
_NO_INCARNATION: Final = "new"
_PUBLIC: Final = b"penstock: no secret is configured"
"""Used before a secret exists; a MAC with it only proves that the peer speaks the protocol."""
_SECRETS_KEY: Final = b"\xff\xff\xfe"
"""In raft-meta, beside `fmt.IDENTITY_KEY`: no group has the number 0xFFFF."""


class Stored(Struct, frozen=True, array_like=True):
    """The secrets in a node's directory; written with its identity."""

    seed: bytes = b""
    """The seed of the incarnation; empty: an earlier release created the directory."""
    key: bytes = b""
    """The generated key of the cluster."""


_encoder: Final = Encoder()
_decoder: Final = Decoder(Stored)


def load_stored(database: Database) -> Stored:
    row = database.get(fmt.META_LOG, _SECRETS_KEY)
    return Stored() if row is None else _decoder.decode(row)


def put_stored(batch: Batch, stored: Stored) -> None:
    batch.put(fmt.META_LOG, _SECRETS_KEY, _encoder.encode(stored))


def draw_incarnation(now_ms: int, entropy: Callable[[int], bytes]) -> tuple[str, bytes]:
    """Return a new incarnation and the seed that it was derived from."""
    seed = entropy(KEY_SIZE)
    return make_ulid(now_ms, commitment(seed, ULID_RANDOM_SIZE)), seed


def owns_incarnation(seed: bytes, incarnation: str) -> bool:
    """Return whether the incarnation was derived from the seed."""
    number = parse_ulid(incarnation)
    if number is None or len(seed) != KEY_SIZE:
        return False
    return number & ((1 << 80) - 1) == int.from_bytes(commitment(seed, ULID_RANDOM_SIZE), "big")


def check_secrets(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the secrets without blanks and empty lines; raise `SettingsError`, which never shows
    one."""
    secrets = tuple(text.strip() for text in texts if text.strip())
    for text in secrets:
        if len(text) < SECRET_CHARACTERS_MIN:
            raise SettingsError(
                f"node.secret has {len(text)} characters; use at least {SECRET_CHARACTERS_MIN} "
                "random ones"
            )
    if len(secrets) > _SECRETS_MAX:
        raise SettingsError(
            f"node.secret_file has {len(secrets)} secrets; the limit is {_SECRETS_MAX}"
        )
    return secrets


class Credentials:
    """The keys of one node. Reads no clock: the caller says what time it is."""

    def __init__(
        self,
        identity: fmt.Identity,
        secrets: Sequence[str] = (),
        *,
        token: str = "",
        stored: Stored | None = None,
        now_s: Callable[[], int],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._secrets = tuple(
            mac_of(secret.encode(), b"secret") for secret in check_secrets(secrets)
        )
        self._token = token.strip()
        self.stored: Final = stored if stored is not None else Stored()
        self.identity: Final = identity
        self._cluster_id = identity.cluster_id
        self._now_s = now_s
        self._entropy = entropy

    def entered(self, identity: fmt.Identity, stored: Stored) -> Credentials:
        """Return the credentials of a node that has joined a cluster."""
        credentials = Credentials(
            identity,
            token=self._token,
            stored=stored,
            now_s=self._now_s,
            entropy=self._entropy,
        )
        credentials._secrets = self._secrets
        if credentials.is_weak:
            _log.warning(
                "cluster_has_no_secret",
                hint="the internal port is protected by the cluster id alone: set the same "
                "node.secret_file on all nodes and start them again",
            )
        return credentials

    @property
    def has_secret(self) -> bool:
        return bool(self._secrets)

    @property
    def is_weak(self) -> bool:
        """Whether the key follows from the cluster id."""
        return bool(self._cluster_id) and not self._secrets and not self.stored.key

    def draw_nonce(self) -> bytes:
        return self._entropy(NONCE_SIZE)

    @property
    def _member_keys(self) -> tuple[bytes, ...]:
        if self._secrets:
            return self._secrets
        if self.stored.key:
            return (mac_of(self.stored.key, b"generated"),)
        if self._cluster_id:
            return (mac_of(self._cluster_id.encode(), b"cluster id"),)
        return ()

    # -- the side that listens --------------------------------------------------------------------

    def keys_for(self, opening: Opening) -> tuple[bytes, ...]:
        match opening:
            case ConnectRequest():
                return self._member_keys
            case StatusRequest():
                return self._secrets or (_PUBLIC,)
            case JoinRequest(token=token) if token:
                keys = self._token_keys(opening)
                # A node that has a token alone would not be able to talk to the others.
                return () if self._secrets else keys
            case JoinRequest(seed=seed) if seed and not self._secrets:
                return (mac_of(seed, b"seed"),)
            case _:
                return self._secrets

    def make_token(self, node_id: int, address: str, replaced: str) -> str:
        """Return a token for a node that is to join; it ends after `TOKEN_SECONDS`."""
        if self._secrets:
            raise BadRequestError("this cluster has a secret: a node joins with node.secret_file")
        public = f"{node_id}.{self._now_s() + TOKEN_SECONDS}.{replaced or _NO_INCARNATION}"
        return f"{public}.{self._token_key(self._member_keys[0], public, address).hex()}"

    @staticmethod
    def replaced_by(join: JoinRequest) -> str:
        """Return which incarnation the token of a join replaces; empty: the node is new."""
        replaced = join.token.rpartition(".")[2]
        return "" if replaced == _NO_INCARNATION else replaced

    def _token_keys(self, join: JoinRequest) -> tuple[bytes, ...]:
        node_id, _, rest = join.token.partition(".")
        expires, _, _ = rest.partition(".")
        if node_id != str(join.node_id) or not expires.isdigit() or len(expires) > KEY_SIZE:
            return ()
        if int(expires) < self._now_s():
            return ()
        return tuple(self._token_key(key, join.token, join.address) for key in self._member_keys)

    @staticmethod
    def _token_key(key: bytes, public: str, address: str) -> bytes:
        return mac_of(key, b"token", public.encode(), address.encode())[:_TOKEN_KEY_SIZE]

    # -- the side that connects -------------------------------------------------------------------

    @property
    def hello_key(self) -> bytes:
        return self._member_keys[0]

    @property
    def ask_key(self) -> bytes:
        return self._secrets[0] if self._secrets else _PUBLIC

    def join_with(self) -> tuple[str, bytes, bytes]:
        """Return the public part of the token, the seed to send and the key to prove with."""
        if self._secrets:
            return "", b"", self._secrets[0]
        if self._token:
            public, _, secret = self._token.rpartition(".")
            try:
                key = bytes.fromhex(secret)
            except ValueError:
                key = b""
            if public.count(".") != _TOKEN_PARTS - 2 or len(key) != _TOKEN_KEY_SIZE:
                raise SettingsError(
                    "node.join_token is not a token of `penstock cluster add`: copy it whole"
                )
            return public, b"", key
        return "", self.stored.seed, mac_of(self.stored.seed, b"seed")
