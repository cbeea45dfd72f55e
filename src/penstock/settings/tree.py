"""All settings: their defaults, units, bounds and descriptions, declared once.

The code reads the tree, `load_settings` validates against it, and `docs/configuration.md` is
generated from it. Names contain their units; a key without a unit is a count. The defaults are
those of a server (`SERVE`); `EMBEDDED` has those that differ for a store inside a program, with
smaller files and less memory.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.settings.bounds import MIB
from penstock.settings.mqtt_access_section import MqttAccessSettings
from penstock.settings.mqtt_bridge_section import MqttBridgeSettings
from penstock.settings.mqtt_features_section import MqttFeatureSettings
from penstock.settings.mqtt_section import MqttSettings
from penstock.settings.server_sections import (
    KafkaSettings,
    LogSettings,
    NodeSettings,
    ServerSettings,
)
from penstock.settings.storage_sections import (
    BrokerSettings,
    ClockSettings,
    EngineSettings,
    OffsetSettings,
    TieringSettings,
    TopicSettings,
)


class Settings(Struct, frozen=True, kw_only=True):
    """The whole tree."""

    node: NodeSettings = NodeSettings()
    server: ServerSettings = ServerSettings()
    kafka: KafkaSettings = KafkaSettings()
    mqtt: MqttSettings = MqttSettings()
    mqtt_access: MqttAccessSettings = MqttAccessSettings()
    mqtt_features: MqttFeatureSettings = MqttFeatureSettings()
    mqtt_bridge: MqttBridgeSettings = MqttBridgeSettings()
    broker: BrokerSettings = BrokerSettings()
    engine: EngineSettings = EngineSettings()
    offsets: OffsetSettings = OffsetSettings()
    topics: TopicSettings = TopicSettings()
    tiering: TieringSettings = TieringSettings()
    clock: ClockSettings = ClockSettings()
    log: LogSettings = LogSettings()


SERVE: Final = Settings()
"""The defaults of `penstock serve`."""


def keeps_default_sizes(settings: Settings) -> tuple[bool, bool]:
    """Say whether the sizes of log files, and of index files, are those of `SERVE` or `EMBEDDED`:
    then a small disk, or a small log, may have smaller ones."""
    engine, defaults = settings.engine, (SERVE, EMBEDDED)
    log_size = settings.broker.commit_log_file_size
    index = (engine.index_slots, engine.index_entries_max)
    return (
        log_size in [default.broker.commit_log_file_size for default in defaults],
        index
        in [(default.engine.index_slots, default.engine.index_entries_max) for default in defaults],
    )


EMBEDDED: Final = replace(
    SERVE,
    broker=replace(
        SERVE.broker, commit_log_file_size=64 * MIB, consume_queue_file_size=20_000 * 20
    ),
    engine=replace(
        SERVE.engine,
        index_slots=250_000,
        index_entries_max=1_000_000,
        mapped_bytes_max=1024 * MIB,
        rocksdb_block_cache_size=8 * MIB,
        rocksdb_write_buffer_size=8 * MIB,
        threads=4,
    ),
    offsets=replace(SERVE.offsets, idle_group_h=365 * 24),
    clock=replace(SERVE.clock, gap_max_h=30 * 24),
    log=replace(SERVE.log, level="warning"),
)
"""The defaults of `penstock.open`."""
