"""Operations of a store that are not about records, each defined once as a request.

`topics` has the administration of topics, `groups` the consumer groups, `node` the node. Operations
on records are in `penstock.adapter.requests`.
"""

__all__ = ["groups", "node", "topics"]
