"""Reads options: strings by names that Spark does not distinguish by case.

An option that is misspelt would silently change what is read or written; so unknown names are
refused, with the nearest known one. Options of a Kafka client (`kafka.bootstrap.servers`) mean
nothing to a directory; they are passed over with a warning, so that a job that was written for
Kafka's source needs no more than another format and a path.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Final

from penstock.errors import BadRequestError
from penstock.pipeline.read.positions import Positions
from penstock.platform.log import get_logger

_log = get_logger(__name__)

_KAFKA_PREFIX: Final = "kafka."
_KAFKA_ONLY: Final = frozenset(
    {
        "groupidprefix",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "kafkaconsumer.polltimeoutms",
        "includetimestamp",
    }
)
"""Options of Kafka's source that only concern its client."""
_FROM_SPARK: Final = frozenset(
    {
        "checkpointlocation",
        "queryname",
        "outputmode",
        "schema",
        "serialization.format",
        "location",
    }
)
"""Options that Spark itself hands through."""
_INSTEAD: Final = {
    "kafka.bootstrap.servers": "'path' names a directory, 'endpoint' a running node",
    "kafka.isolation.level": "'isolationLevel' says whether open transactions are shown",
    "kafka.group.id": "positions are in the checkpoint of the query, not in a group",
    "kafka.auto.offset.reset": "'startingOffsets' says where a query begins",
    "groupidprefix": "positions are in the checkpoint of the query, not in a group",
    "kafkaconsumer.polltimeoutms": "a read of a node ends after 60 s without an answer",
    "fetchoffset.numretries": "offsets are read from the store itself",
    "fetchoffset.retryintervalms": "offsets are read from the store itself",
    "includetimestamp": "the column 'timestamp' is always there",
}
"""What there is here instead of an option of Kafka's source."""


class OptionTable:
    """The options of one read or write."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._names: Final = {name.lower(): name for name in known}
        self._values: Final = {name.lower(): value for name, value in options.items()}
        for name in self._values:
            if name not in self._names and name not in _FROM_SPARK:
                self._refuse(name)

    def _refuse(self, name: str) -> None:
        if name.startswith(_KAFKA_PREFIX) or name in _KAFKA_ONLY:
            instead = _INSTEAD.get(name, "there is no Kafka client here")
            _log.warning("option_without_effect", option=name, instead=instead)
            return
        near = get_close_matches(name, self._names, n=1, cutoff=0.5)
        hint = f"did you mean {self._names[near[0]]!r}?" if near else ""
        raise BadRequestError(
            f"unknown option {name!r}; {hint or f'the options are {sorted(self._names.values())}'}"
        )

    def spark_option(self, name: str) -> str | None:
        """Return an option that Spark handed through."""
        return self._values.get(name.lower())

    def text(self, name: str) -> str | None:
        assert name.lower() in self._names, name
        value = self._values.get(name.lower())
        return None if value is None or not value.strip() else value.strip()

    def required(self, name: str, why: str) -> str:
        value = self.text(name)
        if value is None:
            raise BadRequestError(f"option {name!r} is missing: {why}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise BadRequestError(f"option {name!r} is {value!r}, expected true or false")
        return value.lower() == "true"

    def number(self, name: str, *, minimum: int) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            number = int(value)
        except ValueError:
            number = minimum - 1
        if number < minimum:
            raise BadRequestError(f"option {name!r} is {value!r}, expected a number >= {minimum}")
        return number

    def names(self, name: str) -> tuple[str, ...] | None:
        """Return a list with commas between its items."""
        value = self.text(name)
        if value is None:
            return None
        return tuple(
            dict.fromkeys(name_part.strip() for name_part in value.split(",") if name_part.strip())
        )

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of `choices`; the first is the default."""
        value = (self.text(name) or choices[0]).lower()
        if value not in choices:
            raise BadRequestError(f"option {name!r} is {value!r}, expected {' or '.join(choices)}")
        return value


Offsets = dict[str, dict[int, int]]
"""Offsets, or timestamps, by topic and partition."""


def parse_offsets(text: str, option: str) -> Offsets:
    """Parse `{"topic": {"0": 17}}`."""
    offsets: Offsets = {}
    for shard, number in Positions.parse(text, option).offsets.items():
        offsets.setdefault(shard.topic, {})[shard.partition] = number
    return offsets


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def parse_assignment(text: str) -> dict[str, tuple[int, ...]]:
    """Parse `{"topic": [0, 1]}`."""
    try:
        return {
            topic: tuple(_whole(partition) for partition in partitions)
            for topic, partitions in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise BadRequestError(
            f"option 'assign' is {text!r}, expected JSON like {{\"orders\": [0, 1]}}"
        ) from error
