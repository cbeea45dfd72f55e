"""The store as programs use it: `Store`, `Topic`, `Consumer`, over a `Backend`.

`penstock.open` gives a store in this process; a remote one has the same methods over another
backend. `validation` has the checks of arguments that remote and asynchronous stores share, `topic`
what `penstock.aio` needs besides.
"""

from penstock.api.backend import Backend, TopicPartition
from penstock.api.consumer import Consumer
from penstock.api.embedded import EmbeddedBackend
from penstock.api.store import Store
from penstock.api.topic import Topic
from penstock.api.topic_info import GroupInfo, GroupMember, PartitionInfo, TopicInfo
from penstock.meta import TieringPolicy

__all__ = [
    "Backend",
    "Consumer",
    "EmbeddedBackend",
    "GroupInfo",
    "GroupMember",
    "PartitionInfo",
    "Store",
    "TieringPolicy",
    "Topic",
    "TopicInfo",
    "TopicPartition",
    "topic",
    "validation",
]
