"""The MQTT front end: clients of MQTT 3.1, 3.1.1 and 5 work against Penstock.

    socket ──▶ connection ──▶ decoder ──▶ protocol: CONNECT, limits, hooks
                                             │
              publish ◀──────────────────────┼──────────────────▶ sessions, subscriptions
      topic ─▶ rule ─▶ shard ─▶ append       │                               │
                 │        └──▶ PUBACK, PUBREC in the order of receipt        │
                 └──▶ delivery: tree ─▶ sessions that are live ◀── cursors ──┘

Other packages use `start_server`, and the packages `client` and `policy`. A name is loaded with its
first use, so that the command line loads no server.
"""

from typing import TYPE_CHECKING

from penstock.platform.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.brokers.mqtt.cluster.cluster import Peers
    from penstock.brokers.mqtt.server import MqttServer, start_server

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__, {"cluster.cluster": "Peers", "server": "MqttServer start_server"}
    )

__all__ = ["MqttServer", "Peers", "client", "policy", "start_server"]
