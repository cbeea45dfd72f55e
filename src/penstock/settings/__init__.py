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
    keeps_default_sizes,
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
    "keeps_default_sizes",
    "load_settings",
    "merge_settings",
]
