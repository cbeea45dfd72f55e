"""Messages between replicas as bytes: MessagePack arrays."""

from __future__ import annotations

from typing import Final

from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Encoder

from penstock.engine.replication.messages import Message
from penstock.errors import BadRequestError

_encoder: Final = Encoder()
_decoder: Final[Decoder[Message]] = Decoder(Message)


def encode_message(message: Message) -> bytes:
    return _encoder.encode(message)


def decode_message(data: bytes) -> Message:
    try:
        return _decoder.decode(data)
    except MsgspecError as error:
        raise BadRequestError(f"not a message of the replication: {error}") from error
