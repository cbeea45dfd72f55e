"""Consumer groups: members, generations, assignments; one coordinator for every interface.

`machine` is the classic rebalance protocol as a pure state machine, `coordinator` gives it a clock,
threads and a place to keep members over a restart, `membership` is the client's side of it, and
`assignors` decides which member reads which partition. The Kafka front end, the gRPC service and
the consumers of an embedded store all use the same coordinator.
"""
