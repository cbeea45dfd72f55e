"""All settings in one typed tree; see `tree` for them and `loading` for where they come from."""

from penstock.settings.loading import load_settings, merge_settings
from penstock.settings.tree import (
    EMBEDDED,
    SERVE,
    BrokerSettings,
    EngineSettings,
    KafkaSettings,
    LogSettings,
    NodeSettings,
    OffsetSettings,
    ServerSettings,
    Settings,
    TopicSettings,
)

__all__ = [
    "EMBEDDED",
    "SERVE",
    "BrokerSettings",
    "EngineSettings",
    "KafkaSettings",
    "LogSettings",
    "NodeSettings",
    "OffsetSettings",
    "ServerSettings",
    "Settings",
    "TopicSettings",
    "load_settings",
    "merge_settings",
]
