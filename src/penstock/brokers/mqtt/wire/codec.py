"""Picks the codec: the native one, or the reference in Python (`PENSTOCK_PURE=1` forces it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.brokers.mqtt.wire.pure.encode import encode
from penstock.brokers.mqtt.wire.validation import DecodeLimits
from penstock.codec.select import IS_NATIVE

if TYPE_CHECKING or not IS_NATIVE:
    from penstock.brokers.mqtt.wire.pure.decode import Decoder
    from penstock.brokers.mqtt.wire.pure.encode import encode_acks
    from penstock.brokers.mqtt.wire.pure.runs import EncodedRun
else:
    from penstock._native import MqttEncodedRun as EncodedRun
    from penstock._native import mqtt_encode_acks as encode_acks
    from penstock.brokers.mqtt.wire.native import Decoder

__all__ = ["DecodeLimits", "Decoder", "EncodedRun", "encode", "encode_acks"]
