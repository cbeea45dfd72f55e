"""Picks the codec: the native one, or the reference in Python (`PENSTOCK_PURE=1` forces it)."""

from __future__ import annotations

from penstock.brokers.mqtt.wire.pure.decode import Decoder
from penstock.brokers.mqtt.wire.pure.encode import encode, encode_acks
from penstock.brokers.mqtt.wire.validation import DecodeLimits

__all__ = ["DecodeLimits", "Decoder", "encode", "encode_acks"]
