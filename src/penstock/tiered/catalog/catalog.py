"""The catalogue of a tier: what its shards are called and how they are kept, so that a node can be
made of the tier alone.

    catalogue-<cluster id>    topics (ids, names, options, partitions), offsets of groups

One object for each cluster, replaced by compare-and-set and checksummed. The manifests decide what
records there are; the catalogue is as old as the last round in which it was written. Once another
cluster has taken the tier over, the old one can no longer write its own.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import CorruptionError, StaleWriteError
from penstock.meta import TopicConfig
from penstock.tiered.chunk.shard_manifest import LeaseLostError
from penstock.tiered.object_frame import HEAD_SIZE, add_frame, strip_frame
from penstock.tiered.providers.contract import ObjectMissingError, TierProvider

PREFIX: Final = "catalogue-"
VERSION: Final = 1
_MAGIC: Final = b"PSTKCTLG"
_TRIES: Final = 5


class CatalogueTopic(Struct, frozen=True, kw_only=True):
    topic_id: str
    namespace: str
    name: str
    partitions: int
    config: TopicConfig
    created_at_ms: int = 0


class GroupOffset(Struct, frozen=True, array_like=True):
    shard: str
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class CatalogueGroup(Struct, frozen=True, kw_only=True):
    namespace: str
    group: str
    offsets: tuple[GroupOffset, ...]


class Catalogue(Struct, frozen=True, kw_only=True):
    cluster_id: str
    topics: tuple[CatalogueTopic, ...] = ()
    groups: tuple[CatalogueGroup, ...] = ()
    written_ms: int = 0
    revision: int = 0
    taken_over_by: str = ""
    """The cluster that has the tier now; empty: this one."""
    restored_from: str = ""
    """The cluster whose tier this one took over."""


_decoder: Final = msgspec.msgpack.Decoder(Catalogue)


def encode_catalogue(catalogue: Catalogue) -> bytes:
    return add_frame(_MAGIC, VERSION, msgspec.msgpack.encode(catalogue))


def decode_catalogue(name: str, data: bytes) -> Catalogue:
    """Return the catalogue; `NotSupportedError` for one of a newer version, `CorruptionError` for
    damage."""
    body = strip_frame(_MAGIC, VERSION, data, name=name, what="a catalogue")
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptionError(name, position=HEAD_SIZE, reason=str(error)) from error


def key_of(cluster_id: str) -> str:
    return f"{PREFIX}{cluster_id}"


def read_catalogue(provider: TierProvider, cluster_id: str) -> tuple[Catalogue, str] | None:
    """Return a cluster's catalogue and its version; None when there is none."""
    key = key_of(cluster_id)
    try:
        data, version = provider.get(key)
    except ObjectMissingError:
        return None
    return decode_catalogue(f"{provider.url.rstrip('/')}/{key}", data), version


def list_catalogues(provider: TierProvider) -> list[Catalogue]:
    """Return the catalogues of a tier that can be read, the newest first. One that is damaged is
    passed over when there are others, and raises `CorruptionError` when it is the only one."""
    catalogues: list[Catalogue] = []
    damaged: CorruptionError | None = None
    for info in list(provider.list(PREFIX)):
        if "/" in info.key:
            continue
        try:
            known = read_catalogue(provider, info.key.removeprefix(PREFIX))
        except CorruptionError as error:
            damaged = error
            continue
        if known is not None:
            catalogues.append(known[0])
    if not catalogues and damaged is not None:
        raise damaged
    return sorted(catalogues, key=lambda catalogue: catalogue.written_ms, reverse=True)


def put_catalogue(provider: TierProvider, catalogue: Catalogue) -> None:
    """Replace a cluster's catalogue; `LeaseLostError` when another cluster has taken it over."""
    for _ in range(_TRIES):
        before = read_catalogue(provider, catalogue.cluster_id)
        known, version = before if before is not None else (None, None)
        if known is not None and known.taken_over_by and not catalogue.taken_over_by:
            raise LeaseLostError(
                f"{provider.url} was taken over by cluster {known.taken_over_by} "
                f"(penstock tier restore); cluster {catalogue.cluster_id} no longer writes there"
            )
        revision = 1 if known is None else known.revision + 1
        origin = catalogue.restored_from or ("" if known is None else known.restored_from)
        new = replace(catalogue, revision=revision, restored_from=origin)
        try:
            provider.compare_and_set(key_of(catalogue.cluster_id), encode_catalogue(new), version)
        except StaleWriteError:
            continue
        return
    raise StaleWriteError(
        f"the catalog in {provider.url} was changed by other writers during {_TRIES} attempts; "
        "try again"
    )
