"""Positions in topics, with the id of each topic, as text.

    {"orders": {"id": "orders-01JD3…", "0": 17, "1": 4}}

A number is the next offset of a partition. The id distinguishes a topic from an earlier one of the
same name: positions in a topic mean nothing once it was deleted and created again. It is the
topic id of a node (by its address or its directory), `name@number` of a plain store directory, and
absent where the store knows none, or where an earlier release wrote the text.

The text is canonical, since Spark compares offsets as text: topics are sorted, the id comes first,
partitions follow by number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final, Self

from msgspec import Struct

from penstock.errors import BadRequestError
from penstock.record import ShardId

ID: Final = "id"

PositionsJson = dict[str, dict[str, int | str]]
"""What stands in a checkpoint, parsed."""


class Positions(Struct, frozen=True):
    offsets: dict[ShardId, int]
    ids: dict[str, str] = {}
    """By topic; a topic without one is missing."""

    def to_json(self) -> PositionsJson:
        topics: PositionsJson = {}
        for shard in sorted(self.offsets):
            if shard.topic not in topics:
                known = self.ids.get(shard.topic)
                topics[shard.topic] = {} if known is None else {ID: known}
            topics[shard.topic][str(shard.partition)] = self.offsets[shard]
        return topics

    @classmethod
    def from_json(cls, parsed: Mapping[str, Mapping[str, int | str]]) -> Self:
        """Take what `to_json` gave; raise ValueError or TypeError for anything else."""
        offsets: dict[ShardId, int] = {}
        ids: dict[str, str] = {}
        for topic, partitions in parsed.items():
            for name, value in partitions.items():
                if name == ID:
                    if not isinstance(value, str):
                        raise TypeError(f"the id {value!r} of {topic!r} is not text")
                    ids[topic] = value
                elif isinstance(value, bool) or not isinstance(value, int):
                    raise TypeError(f"{value!r} is not a whole number")
                else:
                    offsets[ShardId(topic, int(name))] = value
        return cls(offsets, ids)

    @classmethod
    def parse(cls, text: str, option: str) -> Self:
        try:
            return cls.from_json(json.loads(text))
        except (ValueError, TypeError, AttributeError) as error:
            raise BadRequestError(
                f'{option} is {text!r}, expected JSON like {{"orders": {{"0": 17, "1": -2}}}}'
            ) from error

    def recreated(self, present: Mapping[str, str], topics: Iterable[str]) -> dict[str, str]:
        """Return those of `topics` that have another id at present, each with a sentence."""
        return {
            topic: recreated_text(topic, self.ids[topic], present[topic])
            for topic in sorted(set(topics))
            if topic in self.ids and topic in present and self.ids[topic] != present[topic]
        }


def recreated_text(topic: str, known: str, present: str) -> str:
    return (
        f"topic {topic!r} was deleted and created again: the position is of the topic with the id "
        f"{known!r}, the present one has {present!r}"
    )
