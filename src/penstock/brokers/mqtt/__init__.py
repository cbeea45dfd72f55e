"""The MQTT front end: clients of MQTT 3.1, 3.1.1 and 5 work against Penstock.

socket ──▶ connection ──▶ decoder ──▶ protocol: CONNECT, limits, hooks
                                         │
          publish ◀──────────────────────┼──────────────────▶ sessions, subscriptions
  topic ─▶ rule ─▶ shard ─▶ append       │                               │
             │        └──▶ PUBACK, PUBREC in the order of receipt        │
             └──▶ delivery: tree ─▶ sessions that are live ◀── cursors ──┘
"""

from penstock.brokers.mqtt.cluster.cluster import Peers
from penstock.brokers.mqtt.server import MqttServer, start_server

__all__ = ["MqttServer", "Peers", "start_server"]
