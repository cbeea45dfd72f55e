"""Consumer groups: members, generations, assignments; one coordinator for every interface.

`state_machine` is the classic rebalance protocol as a pure state machine, the package `coordinator`
adds a clock, threads and the persistence of members over a restart, and `assignors` decides which
member reads which partition. The Kafka front end, the gRPC service and the consumers of an embedded
store all use the same coordinator.

Each module of `__all__` is an interface of its own: clients use `assignors`, `consumer_protocol`
and `model`, servers `routing` and `coordinator`.
"""

__all__ = [
    "assignors",
    "codes",
    "consumer_protocol",
    "coordinator",
    "error_mapping",
    "model",
    "routing",
    "state_machine",
    "subscriptions",
]
