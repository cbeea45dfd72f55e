"""The handshake by itself: what a stranger, an eavesdropper and a mirror can and cannot do."""

from __future__ import annotations

import os
from random import Random

import pytest
from msgspec.structs import replace

from penstock.errors import BadRequestError, SettingsError
from penstock.meta.raft.network.credentials import (
    Credentials,
    Stored,
    draw_incarnation,
    owns_incarnation,
)
from penstock.meta.raft.network.handshake import Acceptor, Opener, cluster_tag
from penstock.meta.raft.network.messages import (
    NONCE_SIZE,
    PROTOCOL,
    ConnectRequest,
    HandshakeAccepted,
    HandshakeRejected,
    JoinRequest,
    Opening,
    Sealed,
    StatusRequest,
    decode_handshake,
    encode_handshake,
)
from penstock.meta.storage import log_format as fmt

KEY = b"k" * 32
NOW_S = 1_000_000


class Keys:
    def __init__(self, *keys: bytes) -> None:
        self._keys = keys

    def keys_for(self, _opening: Opening) -> tuple[bytes, ...]:
        return self._keys


def hello(**changes: object) -> ConnectRequest:
    made = ConnectRequest(PROTOCOL, cluster_tag("c"), 2, "B", 1, "A", os.urandom(NONCE_SIZE))
    return replace(made, **changes)


def credentials(
    *secrets: str, cluster_id: str = "c", token: str = "", stored: Stored | None = None
) -> Credentials:
    return Credentials(
        fmt.Identity(fmt.VERSION, cluster_id, 1, 1, "A"),
        secrets,
        token=token,
        stored=stored,
        now_s=lambda: NOW_S,
        entropy=os.urandom,
    )


def play(opener: Opener, acceptor: Acceptor) -> list[bytes]:
    """Exchange frames until the acceptor knows what is wanted; return what the opener sent."""
    challenge = acceptor.receive(opener.first)
    assert challenge is not None
    proof = opener.receive(challenge)
    assert proof is not None
    assert acceptor.receive(proof) is None
    assert acceptor.opening is not None
    return [opener.first, proof]


def acceptor_of(*keys: bytes) -> Acceptor:
    return Acceptor(Keys(*keys), os.urandom(NONCE_SIZE))


def test_both_sides_prove_the_key_and_a_wrapped_key_arrives() -> None:
    opener, acceptor = Opener(hello(), KEY), acceptor_of(b"another", KEY)
    play(opener, acceptor)
    wrapped = acceptor.wrap(b"s" * 32)
    assert wrapped != b"s" * 32
    assert opener.receive(acceptor.seal(HandshakeAccepted("c", 1, wrapped))) is None
    assert isinstance(opener.answer, HandshakeAccepted)
    assert opener.unwrap(opener.answer.key) == b"s" * 32
    assert opener.unwrap(b"") == b""


def test_a_stranger_gets_nothing_but_a_nonce() -> None:
    opener, acceptor = Opener(hello(), b"guessed"), acceptor_of(KEY)
    with pytest.raises(BadRequestError, match="does not know this cluster's key"):
        play(opener, acceptor)
    assert acceptor.opening is None


def test_a_node_without_the_key_cannot_pose_as_a_member() -> None:
    opener, acceptor = Opener(hello(), KEY), acceptor_of(KEY)
    play(opener, acceptor)
    for forged in (
        Sealed(encode_handshake(HandshakeAccepted("evil", 1)), b"\0" * 32),
        Sealed(encode_handshake(HandshakeAccepted("evil", 1)), b""),
        HandshakeAccepted("evil", 1),
    ):
        with pytest.raises(BadRequestError):
            opener.receive(encode_handshake(forged))
        assert opener.answer is None
    # A refusal that proves nothing ends the connection and is marked as such in the log.
    opener.receive(encode_handshake(HandshakeRejected("go away")))
    assert opener.answer == HandshakeRejected("go away (unauthenticated)")


def test_a_recorded_handshake_proves_nothing_later() -> None:
    opener, acceptor = Opener(hello(), KEY), acceptor_of(KEY)
    first, proof = play(opener, acceptor)
    later = acceptor_of(KEY)
    assert later.receive(first) is not None
    with pytest.raises(BadRequestError):
        later.receive(proof)


def test_what_is_sent_back_to_its_sender_is_not_a_proof() -> None:
    """A mirror opens a connection to A, gets its challenge, and lets A itself answer it."""
    opener, acceptor = Opener(hello(), KEY), acceptor_of(KEY)
    challenge = acceptor.receive(opener.first)
    assert challenge is not None
    proof = opener.receive(challenge)
    assert proof is not None
    sent = decode_handshake(proof)
    body = encode_handshake(HandshakeAccepted("c", 1))
    with pytest.raises(BadRequestError):
        opener.receive(encode_handshake(Sealed(body, getattr(sent, "mac", b""))))


def test_every_field_of_the_opening_is_proved() -> None:
    changes: list[dict[str, object]] = [
        {"node_id": 3},
        {"incarnation": "C"},
        {"to_node": 9},
        {"to_incarnation": ""},
        {"cluster": "other"},
        {"nonce": b"n" * NONCE_SIZE},
    ]
    for change in changes:
        honest = hello()
        opener, acceptor = Opener(honest, KEY), acceptor_of(KEY)
        challenge = acceptor.receive(encode_handshake(replace(honest, **change)))
        assert challenge is not None
        proof = opener.receive(challenge)
        assert proof is not None
        with pytest.raises(BadRequestError):
            acceptor.receive(proof)


def test_another_protocol_is_refused_before_anything_else() -> None:
    for protocol in (0, 1, PROTOCOL + 1):
        with pytest.raises(BadRequestError, match=f"speaks protocol {protocol}"):
            acceptor_of(KEY).receive(encode_handshake(hello(protocol=protocol)))
    with pytest.raises(BadRequestError, match="nonce of 0 bytes"):
        acceptor_of(KEY).receive(encode_handshake(hello(nonce=b"")))


def test_no_order_of_messages_confuses_either_side() -> None:
    """Random messages, own ones and those of other connections: only a true proof opens."""
    random = Random(1)
    for _ in range(300):
        opener, acceptor = Opener(hello(), KEY), acceptor_of(KEY)
        other_opener, other = Opener(hello(), KEY), acceptor_of(KEY)
        pool = [opener.first, *play(other_opener, other), other.seal(HandshakeAccepted("c", 1))]
        challenge = acceptor_of(KEY).receive(opener.first)
        assert challenge is not None
        pool += [challenge, b"", b"\xc1", os.urandom(40)]
        for frame in random.choices(pool, k=6):
            try:
                acceptor.receive(frame)
            except BadRequestError:
                break
        assert acceptor.opening is None
        for frame in random.choices(pool, k=6):
            try:
                opener.receive(frame)
            except BadRequestError:
                break
        assert opener.answer is None


def test_a_secret_can_be_replaced_node_by_node() -> None:
    old, new = "the old secret of all", "the new secret of all"
    one, both, other, last = (
        credentials(old),
        credentials(old, new),
        credentials(new, old),
        credentials(new),
    )
    for left, right in ((one, both), (both, other), (other, both), (other, last), (last, other)):
        play(Opener(hello(), left.hello_key), Acceptor(right, os.urandom(NONCE_SIZE)))
    with pytest.raises(BadRequestError):
        play(Opener(hello(), one.hello_key), Acceptor(last, os.urandom(NONCE_SIZE)))


def test_secrets_are_long_and_never_shown() -> None:
    with pytest.raises(SettingsError, match="has 5 characters; use at least 16") as caught:
        credentials("hush!")
    assert "hush" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"node\.secret_file has 9 secrets; the limit is 8"):
        credentials(*["a secret of many lines"] * 9)
    found = credentials("the secret that is not shown")
    assert "not shown" not in repr(found) + repr(vars(found))


def join(made: Credentials, **changes: object) -> JoinRequest:
    token, seed, _ = made.join_with()
    built = JoinRequest(PROTOCOL, 4, "h:1", "I", os.urandom(NONCE_SIZE), token, seed)
    return replace(built, **changes)


def test_a_token_is_good_for_one_node_one_address_and_an_hour() -> None:
    stored = Stored(key=b"generated" * 4)
    member = credentials(stored=stored)
    token = member.make_token(4, "h:1", "")
    newcomer = credentials(cluster_id="", token=token)
    key = newcomer.join_with()[2]

    def is_accepted(request: JoinRequest, at: Credentials = member) -> bool:
        try:
            play(Opener(request, key), Acceptor(at, os.urandom(NONCE_SIZE)))
        except BadRequestError:
            return False
        return True

    assert is_accepted(join(newcomer))
    assert not is_accepted(join(newcomer, node_id=5))
    assert not is_accepted(join(newcomer, address="h:2"))
    later = NOW_S + 3_600
    public = newcomer.join_with()[0]
    assert public == f"4.{later}.new"
    assert not is_accepted(join(newcomer, token=f"4.{later + 1}.new"))
    assert not is_accepted(join(newcomer, token=f"4.{later}.other"))
    for nonsense in ("4", "4..", "4.x.new", f"4.{'9' * 99}.new", "..."):
        assert not is_accepted(join(newcomer, token=nonsense))
    assert not is_accepted(join(newcomer), credentials(stored=Stored(key=b"another key" * 3)))
    expired = Credentials(
        member.identity, stored=stored, now_s=lambda: later + 1, entropy=os.urandom
    )
    assert not is_accepted(join(newcomer), expired)
    # Where there is a secret, a token alone is not enough.
    assert not is_accepted(join(newcomer), credentials("the secret of this cluster"))
    with pytest.raises(SettingsError, match="copy it whole"):
        credentials(cluster_id="", token=token[:-1]).join_with()


def test_an_incarnation_belongs_to_the_node_that_drew_its_seed() -> None:
    incarnation, seed = draw_incarnation(1_000, os.urandom)
    assert owns_incarnation(seed, incarnation)
    assert not owns_incarnation(os.urandom(32), incarnation)
    assert not owns_incarnation(seed, draw_incarnation(1_000, os.urandom)[0])
    for nonsense in ("", "no ulid", "I" * 26, incarnation[:-1]):
        assert not owns_incarnation(seed, nonsense)
    assert not owns_incarnation(b"", incarnation)


def test_a_question_needs_the_secret_where_there_is_one() -> None:
    member = credentials("the secret of this cluster")
    ask = StatusRequest(PROTOCOL, 9, os.urandom(NONCE_SIZE))
    play(Opener(ask, member.ask_key), Acceptor(member, os.urandom(NONCE_SIZE)))
    with pytest.raises(BadRequestError):
        play(Opener(ask, credentials().ask_key), Acceptor(member, os.urandom(NONCE_SIZE)))
