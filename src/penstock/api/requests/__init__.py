"""Operations of a store that are not about records, each defined once as a request: administration
of topics, consumer groups, the node. Those on records are in `penstock.adapter.requests`."""
