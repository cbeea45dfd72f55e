"""The consumer of a store: its options, its place in a group, and its position per partition.

`consumer` has the class that programs use, `group_membership` joins the group and sends heartbeats
through `group_client`, `partition_positions` decides where each partition is read on,
`partition_fetcher` reads, and `partition_errors` holds the partitions that cannot be read.
"""

from penstock.api.consumer.consumer import PAGE, Consumer
from penstock.api.consumer.options import ConsumerArguments, as_options

__all__ = ["PAGE", "Consumer", "ConsumerArguments", "as_options"]
