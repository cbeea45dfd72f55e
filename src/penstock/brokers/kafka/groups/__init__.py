"""Consumer groups as Kafka's clients know them: members, generations, assignments.

`machine` is the protocol as a pure state machine; `coordinator` gives it a clock and connections.
"""
