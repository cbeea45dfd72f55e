"""What a coordinator answers. The numbers are Kafka's error codes, so that a front end can pass
them on as they are."""

from __future__ import annotations

from enum import IntEnum


class GroupCode(IntEnum):
    none = 0
    coordinator_load_in_progress = 14
    coordinator_not_available = 15
    not_coordinator = 16
    illegal_generation = 22
    inconsistent_group_protocol = 23
    invalid_group_id = 24
    unknown_member_id = 25
    invalid_session_timeout = 26
    rebalance_in_progress = 27
    invalid_request = 42
    non_empty_group = 68
    group_id_not_found = 69
    member_id_required = 79
    group_max_size_reached = 81
    fenced_instance_id = 82
    still_waiting = 10_001
    """The answer is not there yet: send the request again. Only between our own processes."""
