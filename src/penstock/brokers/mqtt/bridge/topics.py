"""Which topics a bridge transfers, and their names on the other side.

filter = "plant/#"  local_prefix = "berlin/"  remote_prefix = ""
local berlin/plant/1   ◀──▶   remote plant/1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.brokers.mqtt.policy.filters import matches
from penstock.brokers.mqtt.wire.errors import ProtocolError
from penstock.brokers.mqtt.wire.packets import MQTT_5, SubscriptionRequest
from penstock.brokers.mqtt.wire.validation import check_filter, check_topic_name
from penstock.errors import SettingsError
from penstock.settings import MqttBridgeTopic

TOPICS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Transfer:
    """One direction of one topic."""

    source_filter: str
    source_prefix: str
    target_prefix: str
    qos: int

    def target_name(self, name: str) -> str | None:
        """Return the name on the other side; None if the filter does not select the name."""
        if not matches(self.source_filter, name):
            return None
        target = self.target_prefix + name.removeprefix(self.source_prefix)
        try:
            check_topic_name(target)
        except ProtocolError:
            return None
        return target


class TransferTable:
    """The transfers of one direction."""

    def __init__(self, transfers: Sequence[Transfer]) -> None:
        self.transfers: Final = tuple(transfers)

    def target_name(self, name: str) -> str | None:
        for transfer in self.transfers:
            target = transfer.target_name(name)
            if target is not None:
                return target
        return None

    def requests(self, version: int) -> list[SubscriptionRequest]:
        """Return the subscriptions at the source; in MQTT 5 without what the bridge sends itself,
        and with retained messages for new subscriptions only."""
        is_5 = version >= MQTT_5
        return [
            SubscriptionRequest(
                transfer.source_filter,
                transfer.qos,
                no_local=is_5,
                retain_as_published=is_5,
                retain_handling=1 if is_5 else 0,
            )
            for transfer in self.transfers
        ]


def tables_of(
    topics: Sequence[MqttBridgeTopic], version: int, name: str
) -> tuple[TransferTable, TransferTable]:
    """Return the transfers to the remote broker and from it; raise `SettingsError`."""
    if len(topics) > TOPICS_MAX:
        raise SettingsError(
            f"mqtt_bridge connection {name!r} has {len(topics)} topics; at most {TOPICS_MAX} are "
            "allowed"
        )
    out, into = [], []
    for topic in topics:
        local, remote = topic.local_prefix + topic.filter, topic.remote_prefix + topic.filter
        for topic_filter in (local, remote):
            try:
                check_filter(topic_filter)
            except ProtocolError as error:
                raise SettingsError(f"mqtt_bridge connection {name!r}: {error}") from error
            if topic_filter.startswith("$"):
                raise SettingsError(
                    f"mqtt_bridge connection {name!r}: {topic_filter!r} begins with $; such topics "
                    "belong to one broker"
                )
        if topic.direction in ("out", "both"):
            out.append(Transfer(local, topic.local_prefix, topic.remote_prefix, topic.qos))
        if topic.direction in ("in", "both"):
            into.append(Transfer(remote, topic.remote_prefix, topic.local_prefix, topic.qos))
        if topic.direction == "both" and version < MQTT_5:
            raise SettingsError(
                f'mqtt_bridge connection {name!r}: topic {topic.filter!r} has direction "both", '
                'which needs version = "5": MQTT 3.1.1 returns each message to its sender'
            )
    return TransferTable(out), TransferTable(into)
