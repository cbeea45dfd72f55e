"""Groups of shared subscriptions: `$share/{group}/{filter}` and `$queue/{filter}`.

A group is a subscriber with one cursor for each shard. It gives each message to one of its members:

    run of messages ──▶ ShareGroup ──▶ strategy: a member with room ──▶ window of the session
                            │ ▲                                              │
                  ShareQueue: what is in flight, what is released ◀── PUBACK, PUBREC, detached

When no member has room, or none is connected, the group falls behind and reads the log later.

Internal to `penstock.brokers.mqtt`.
"""
