"""Consumer groups: members, generations, assignments; one coordinator for every interface.

`state_machine` is the classic rebalance protocol as a pure state machine, the package `coordinator`
adds a clock, threads and the persistence of members over a restart, and `assignors` decides which
member reads which partition. The Kafka front end, the gRPC service and the consumers of an embedded
store all use the same coordinator.
"""
