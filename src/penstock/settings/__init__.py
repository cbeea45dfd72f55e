"""All settings in one typed tree (`tree`), merged from file, environment and flags (`loading`)."""

from penstock.settings.loading import load_settings, merge_settings
from penstock.settings.mqtt_access_section import MqttAccessSettings
from penstock.settings.mqtt_bridge_section import (
    MqttBridgeConnection,
    MqttBridgeSettings,
    MqttBridgeTopic,
)
from penstock.settings.mqtt_features_section import (
    MqttAutoSubscription,
    MqttFeatureSettings,
    MqttRewriteRule,
)
from penstock.settings.mqtt_section import MqttMapRule, MqttSettings
from penstock.settings.redaction import redact, redact_setting
from penstock.settings.secret_file import read_secrets
from penstock.settings.server_sections import (
    KafkaSettings,
    LogSettings,
    NodeSettings,
    ServerSettings,
)
from penstock.settings.storage_sections import (
    BrokerSettings,
    EngineSettings,
    OffsetSettings,
    TieringSettings,
    TopicSettings,
)
from penstock.settings.tree import EMBEDDED, SERVE, Settings, keeps_default_sizes

__all__ = [
    "EMBEDDED",
    "SERVE",
    "BrokerSettings",
    "EngineSettings",
    "KafkaSettings",
    "LogSettings",
    "MqttAccessSettings",
    "MqttAutoSubscription",
    "MqttBridgeConnection",
    "MqttBridgeSettings",
    "MqttBridgeTopic",
    "MqttFeatureSettings",
    "MqttMapRule",
    "MqttRewriteRule",
    "MqttSettings",
    "NodeSettings",
    "OffsetSettings",
    "ServerSettings",
    "Settings",
    "TieringSettings",
    "TopicSettings",
    "keeps_default_sizes",
    "load_settings",
    "merge_settings",
    "read_secrets",
    "redact",
    "redact_setting",
]
