"""The handshake of the internal port: both sides prove that they know the same key.

    opener  ── opening, nonce ──▶  acceptor
            ◀── challenge, nonce ──
            ── proof: MAC(key, opening, challenge) ──▶
            ◀── sealed: answer, MAC(key, opening, challenge, answer) ──

  * Each side draws a nonce of 32 random bytes, and every MAC covers both: a recording of another
    connection proves nothing.
  * The two MACs have different labels: a message that is sent back to its sender is not a proof.
  * The opener proves first: a stranger that connects gets no MAC to guess a weak secret with.
  * The protocol version, both node ids and both incarnations are part of the opening and so of the
    MAC. There is one version and no negotiation, hence nothing to downgrade.

No socket and no clock here: `transport` moves the bytes.
"""

from __future__ import annotations

from hashlib import sha256
from hmac import compare_digest, digest
from typing import Final, Protocol

from penstock.errors import BadRequestError
from penstock.meta.raft.network.messages import (
    NONCE_SIZE,
    PROTOCOL,
    Answer,
    Challenge,
    ConnectRequest,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    Opening,
    PeerStatus,
    Proof,
    Sealed,
    StatusRequest,
    decode_handshake,
    encode_handshake,
)

KEY_SIZE: Final = 32
_OPENER: Final = b"opener"
_ACCEPTOR: Final = b"acceptor"
_WRAP: Final = b"wrap"
_CLUSTER: Final = b"cluster"


def mac_of(key: bytes, label: bytes, *parts: bytes) -> bytes:
    """Return the HMAC-SHA-256 of the parts; their bounds are part of it."""
    data = b"".join(
        len(part).to_bytes(4, "big") + part for part in (b"penstock raft", label, *parts)
    )
    return digest(key, data, "sha256")


def cluster_tag(cluster_id: str) -> str:
    """Return what stands for a cluster id on the wire, and does not reveal it."""
    return mac_of(cluster_id.encode(), _CLUSTER).hex()[:32]


class Gatekeeper(Protocol):
    """Knows which keys may open a connection."""

    def keys_for(self, opening: Opening) -> tuple[bytes, ...]:
        """Return the keys, of which the opener must know one; none: it is refused. Raises
        `BadRequestError` to refuse it with another reason."""
        ...


class Opener:
    """The side that connects: send `first`, feed `take` until `answer` is there."""

    def __init__(self, opening: Opening, key: bytes) -> None:
        self._opening = encode_handshake(opening)
        self._key = key
        self._challenge = b""
        self.answer: Answer | None = None

    @property
    def first(self) -> bytes:
        return self._opening

    def receive(self, frame: bytes) -> bytes | None:
        """Process a frame of the other side; return the next frame to send, if any. Raises
        `BadRequestError` when the other side does not know the key."""
        match decode_handshake(frame):
            case Challenge(nonce) if not self._challenge and len(nonce) == NONCE_SIZE:
                self._challenge = frame
                return encode_handshake(
                    Proof(mac_of(self._key, _OPENER, self._opening, self._challenge))
                )
            case Sealed(body, mac) if self._challenge:
                known = mac_of(self._key, _ACCEPTOR, self._opening, self._challenge, body)
                if not compare_digest(mac, known):
                    raise BadRequestError("the other side does not know the cluster's key")
                answer = decode_handshake(body)
                if not isinstance(answer, HandshakeAccepted | PeerStatus | HandshakeRejected):
                    raise BadRequestError("unexpected answer in a handshake")
                self.answer = answer
                return None
            case HandshakeRejected() as refusal:
                # Not authenticated: good for a log, and for nothing else.
                self.answer = HandshakeRejected(f"{refusal.reason} (unauthenticated)")
                return None
            case _:
                raise BadRequestError("unexpected handshake message")

    def unwrap(self, wrapped: bytes) -> bytes:
        """Return a key that the acceptor wrapped for this connection."""
        return _wrap(wrapped, self._key, self._opening, self._challenge)


class Acceptor:
    """The side that listens: feed `take`; once `opening` is there, the opener is authenticated and
    `seal` makes the answer."""

    def __init__(self, gatekeeper: Gatekeeper, nonce: bytes) -> None:
        self._gatekeeper = gatekeeper
        self._challenge = encode_handshake(Challenge(nonce))
        self._frame = b""
        self._claimed: Opening | None = None
        self._key = b""
        self.opening: Opening | None = None
        """What the opener wants, once it has proved that it knows a key."""

    @property
    def claimed(self) -> Opening | None:
        """What the opener says that it wants, proved or not."""
        return self._claimed

    def receive(self, frame: bytes) -> bytes | None:
        """Process a frame of the other side; return the next frame to send, if any. Raises
        `BadRequestError` for a stranger."""
        greeting = decode_handshake(frame)
        if (
            isinstance(greeting, ConnectRequest | StatusRequest | JoinRequest)
            and self._claimed is None
        ):
            if greeting.protocol != PROTOCOL:
                raise BadRequestError(
                    f"the other side speaks protocol {greeting.protocol}; this node speaks "
                    f"{PROTOCOL}"
                )
            if len(greeting.nonce) != NONCE_SIZE:
                raise BadRequestError(f"a nonce of {len(greeting.nonce)} bytes, not {NONCE_SIZE}")
            self._claimed, self._frame = greeting, frame
            return self._challenge
        if isinstance(greeting, Proof) and self._claimed is not None and self.opening is None:
            for key in self._gatekeeper.keys_for(self._claimed):
                known = mac_of(key, _OPENER, self._frame, self._challenge)
                if compare_digest(greeting.mac, known):
                    self._key, self.opening = key, self._claimed
                    return None
            raise BadRequestError(_explain(self._claimed))
        raise BadRequestError("unexpected handshake message")

    def seal(self, answer: Answer) -> bytes:
        body = encode_handshake(answer)
        mac = mac_of(self._key, _ACCEPTOR, self._frame, self._challenge, body)
        return encode_handshake(Sealed(body, mac))

    def wrap(self, key: bytes) -> bytes:
        """Encrypt a key for the opener; an empty one stays empty."""
        return _wrap(key, self._key, self._frame, self._challenge)


def _wrap(data: bytes, key: bytes, opening: bytes, challenge: bytes) -> bytes:
    """XOR with a pad that only this connection has: it is used once."""
    pad = mac_of(key, _WRAP, opening, challenge)
    return bytes(left ^ right for left, right in zip(data, pad, strict=False))


def _explain(claimed: Opening) -> str:
    match claimed:
        case JoinRequest(token=token) if token:
            return f"the join token of node {claimed.node_id} is not valid here, or has expired"
        case _:
            return (
                f"node {claimed.node_id} does not know this cluster's key: node.secret or "
                "node.secret_file must be the same on all nodes"
            )


def commitment(seed: bytes, size: int) -> bytes:
    """Return the random part of an incarnation: the node that drew `seed` can prove later that
    the incarnation is its own, and no other node can."""
    return sha256(b"penstock incarnation" + seed).digest()[:size]
