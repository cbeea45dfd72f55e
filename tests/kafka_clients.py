"""The Kafka clients of the tests: librdkafka with its log off.

librdkafka's threads outlive the test that made a client, and log to descriptor 2 when the
server stops. Without this those lines end up in the captured output of a later test.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import confluent_kafka
from confluent_kafka import admin

Settings = dict[str, str | int | float | bool]


def _quiet(settings: Mapping[str, object]) -> Settings:
    return cast("Settings", {"log_level": 0, **settings})


class Producer(confluent_kafka.Producer):
    """A producer that logs nothing."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(_quiet(settings))


class Consumer(confluent_kafka.Consumer):
    """A consumer that logs nothing."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(_quiet(settings))


class AdminClient(admin.AdminClient):
    """An admin client that logs nothing."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        super().__init__(_quiet(settings))
