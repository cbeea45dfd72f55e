"""Topics: creation, options, routes from a key to a shard, offsets by time.

A name is loaded with its first use.
"""

from typing import TYPE_CHECKING

from penstock.platform.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from penstock.adapter.topics.admin import NewTopicRequest, TopicAdmin
    from penstock.adapter.topics.cache import BrokerCacheManager
    from penstock.adapter.topics.offsets import TopicOffsets
    from penstock.adapter.topics.options import AlterOptions, TopicOptions, build_config
    from penstock.adapter.topics.partitioning import key_hash
    from penstock.adapter.topics.routes import TopicRoute, TopicRoutes
    from penstock.adapter.topics.shard_name import build_storage_name
    from penstock.adapter.topics.tiering_options import TIERING, shown_policy

else:  # otherwise a misspelt name would pass the type checker
    __getattr__ = lazy_exports(
        __name__,
        {
            "admin": "NewTopicRequest TopicAdmin",
            "cache": "BrokerCacheManager",
            "offsets": "TopicOffsets",
            "options": "AlterOptions TopicOptions build_config",
            "partitioning": "key_hash",
            "routes": "TopicRoute TopicRoutes",
            "shard_name": "build_storage_name",
            "tiering_options": "TIERING shown_policy",
        },
    )

__all__ = [
    "TIERING",
    "AlterOptions",
    "BrokerCacheManager",
    "NewTopicRequest",
    "TopicAdmin",
    "TopicOffsets",
    "TopicOptions",
    "TopicRoute",
    "TopicRoutes",
    "build_config",
    "build_storage_name",
    "key_hash",
    "shown_policy",
]
