"""The lag of groups in the metrics."""

from __future__ import annotations

from tests.engine.quick_directory import quick_directory

from penstock.node.node import Node
from penstock.record import Record


def test_the_lag_of_a_group_is_what_it_has_not_read_yet() -> None:
    with quick_directory() as directory, Node(f"{directory}/data") as node:
        node.admin.create_topic_full("orders", 2)
        node.admin.create_topic_full("gone", 1)
        for number in range(10):
            node.driver_manager.write("orders", Record(value=b""), partition=number % 2)
        node.driver_manager.write("gone", Record(value=b""))
        node.offsets.commit_offset("g", {("orders", 0): 2, ("orders", 1): 5, ("gone", 0): 0})
        labels = {"namespace": "default", "group": "g", "topic": "orders"}
        assert node.registry.get_sample_value("penstock_group_lag_records", labels) == 3
        node.admin.delete_topic("gone")
        node.driver_manager.write("orders", Record(value=b""), partition=1)
        assert node.registry.get_sample_value("penstock_group_lag_records", labels) == 4
        gone = {"namespace": "default", "group": "g", "topic": "gone"}
        assert node.registry.get_sample_value("penstock_group_lag_records", gone) is None
        assert node.registry.get_sample_value("penstock_groups") == 1
