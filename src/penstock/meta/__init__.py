"""What the nodes agree on: topics, shards, segments, nodes, leases and consumers' offsets.

    MetaClient ──▶ StandaloneLog (one node) or Raft (cluster) ──▶ state machines ──▶ RocksDB `meta`

Everything that changes is a command in a log; the state machines in `meta.state` are pure
functions over keys and values, so that every node which applies the same log holds the same state.
"""
