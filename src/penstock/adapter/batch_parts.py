"""Checks of a batch for several shards, before and after the write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from penstock.adapter.leader_changes import UNDONE
from penstock.engine.contract import Written
from penstock.errors import (
    BadRequestError,
    PartialWriteError,
    StoreError,
    UnknownShardError,
    UnknownTopicError,
)
from penstock.record import Location, Offset, Producer, Record

_NO_BATCHES: Final = (str, bytes, bytearray)


def check_batch(records: object) -> None:
    if type(records) is list and records:
        return
    if not isinstance(records, Sequence) or isinstance(records, _NO_BATCHES):
        raise BadRequestError(f"records must be a sequence, not {type(records).__name__}")
    if not records:
        raise BadRequestError("a batch must hold at least one record")


def check_records_are_records(records: Sequence[object]) -> None:
    for record in records:
        if not isinstance(record, Record):
            raise BadRequestError(f"a record must be a Record, not {type(record).__name__}")


def check_no_producer(producer: Producer | None) -> None:
    if producer is not None:
        # Its sequence counts the records of one shard.
        raise BadRequestError("a write with a producer names its partition")


def cycle_to(partitions: Sequence[int], count: int) -> list[int]:
    """Return `partitions` again and again, `count` numbers in all."""
    times = -(-count // len(partitions))
    return (list(partitions) * times)[:count]


def gravest(errors: Collection[StoreError]) -> StoreError:
    """Return the error of a batch that names no location: none that says that nothing was done
    where another leaves it open."""
    first, *_ = errors
    return next((error for error in errors if not isinstance(error, UNDONE)), first)


def check_all_written(
    topic: str, chosen: Sequence[int], results: Mapping[int, Written | StoreError]
) -> dict[int, int]:
    """Return the first offset by partition; raise when a part was not written."""
    firsts = {p: result.first for p, result in results.items() if isinstance(result, Written)}
    if len(firsts) == len(results):
        return {partition: int(first) for partition, first in firsts.items()}
    errors = {p: result for p, result in results.items() if isinstance(result, StoreError)}
    if any(isinstance(error, UnknownShardError) for error in errors.values()):
        raise UnknownTopicError(topic)  # deleted meanwhile, with its records
    if not firsts:
        raise gravest(errors.values())
    following = dict(firsts)
    locations: list[Location | None] = []
    for partition in chosen:
        offset = following.get(partition)
        locations.append(None if offset is None else Location(partition, offset))
        if offset is not None:
            following[partition] = Offset(offset + 1)
    raise PartialWriteError(locations, errors)
