"""Unclean recovery after a lost majority: one survivor becomes the only member of a new cluster.

Without a majority nothing can be decided any more, and a removed member cannot be removed. This is
done offline, to a directory whose node is stopped:

  * everything in the survivor's logs counts as committed: of the changes that were acknowledged it
    has all that had reached it. What had reached only the lost nodes is lost
  * it becomes the only voter, under a new term; changes of the members that its logs still hold
    are replaced by empty entries, or they would bring the lost voters back
  * the cluster gets a new id and a new key: lost nodes that come back with their old data are
    refused, and cannot elect a leader of their own that the survivor believes

All of it is one synced batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from penstock.errors import NotAStoreError, SetupError
from penstock.meta.controller.decommission import last_replica_shards
from penstock.meta.raft.group.load import Loaded, is_bootstrapped, load_group
from penstock.meta.raft.members.bootstrap import group_names, read_members
from penstock.meta.raft.network.credentials import Stored, load_stored, put_stored
from penstock.meta.rejections import encode_checked
from penstock.meta.standalone.log import METADATA
from penstock.meta.state.metadata import commands as cmd
from penstock.meta.state.metadata.rows import NODES
from penstock.meta.state.model import Member
from penstock.meta.storage import log_format as fmt
from penstock.meta.storage.database import Batch, Database
from penstock.meta.storage.groups import GroupName
from penstock.meta.storage.unflushed_rows import UnflushedRows


class GroupOutlook(Struct, frozen=True):
    """The effect of a recovery on one group."""

    name: str
    applied: int
    commit: int
    last: int
    dropped: tuple[int, ...]
    """Voters and learners that are removed from the group."""

    @property
    def unconfirmed(self) -> int:
        """Entries that are in the survivor's log and not known to be committed: they are kept."""
        return max(0, self.last - self.commit)


class Outlook(Struct, frozen=True):
    """The effects of a recovery."""

    identity: fmt.Identity
    groups: tuple[GroupOutlook, ...]
    members: tuple[Member, ...]
    """Members that are removed."""
    shards: tuple[str, ...]
    """Shards whose last replicas are on those members."""


def look_ahead(database: Database) -> Outlook:
    """Return the effects of a recovery without making it. Raises `NotAStoreError` for a directory
    that cannot be recovered from."""
    identity, loaded = _load(database)
    rows = UnflushedRows(database, METADATA.state_family, METADATA.number, loaded[0].generation)
    members = tuple(member for member in read_members(rows) if member.node_id != identity.node_id)
    return Outlook(
        identity=identity,
        groups=tuple(
            GroupOutlook(
                name=name.name,
                applied=group.applied[0],
                commit=group.hard_state[2],
                last=_last(group),
                dropped=tuple(sorted(_nodes(group.configuration) - {identity.node_id})),
            )
            for name, group in zip(group_names(identity.offset_groups), loaded, strict=True)
        ),
        members=members,
        shards=tuple(
            shard for member in members for shard in last_replica_shards(rows, member.node_id)
        ),
    )


def recover(database: Database, *, draw: Callable[[], tuple[str, bytes]], now_ms: int) -> str:
    """Make the directory's node the only member; return the id of the new cluster."""
    identity, loaded = _load(database)
    cluster_id, _ = draw()
    batch = Batch()
    for name, group in zip(group_names(identity.offset_groups), loaded, strict=True):
        requests = _member_removals(database, group, now_ms) if name == METADATA else []
        make_alone(batch, name, group, identity.node_id, requests)
    fresh = replace(identity, cluster_id=cluster_id)
    batch.put(fmt.META_LOG, fmt.IDENTITY_KEY, fmt.encode_identity(fresh))
    put_stored(batch, Stored(seed=load_stored(database).seed, key=draw()[1]))
    database.write(batch)
    database.sync()
    return cluster_id


def _load(database: Database) -> tuple[fmt.Identity, list[Loaded]]:
    row = database.get(fmt.META_LOG, fmt.IDENTITY_KEY)
    if row is None:
        raise NotAStoreError(f"{database.path} holds no metadata of a node")
    identity = fmt.decode_identity(row)
    names = group_names(identity.offset_groups)
    if not identity.incarnation or not all(is_bootstrapped(database, name) for name in names):
        raise NotAStoreError(f"{database.path} does not belong to a cluster: start the node")
    loaded = [load_group(database, name) for name in names]
    if not all(group.configuration.voters for group in loaded):
        raise NotAStoreError(
            f"node {identity.node_id} had joined, but did not have the cluster's state yet; "
            "recover from another survivor"
        )
    if all(_nodes(group.configuration) == {identity.node_id} for group in loaded):
        raise SetupError(
            f"node {identity.node_id} is the only member already; start it, there is nothing to "
            "recover"
        )
    return identity, loaded


def _member_removals(database: Database, group: Loaded, now_ms: int) -> list[bytes]:
    """Return the requests that remove the rows of all other members, those included that the log
    adds later, and take them out of the replica sets."""
    rows = UnflushedRows(database, METADATA.state_family, METADATA.number, group.generation)
    own = fmt.decode_identity(database.get(fmt.META_LOG, fmt.IDENTITY_KEY) or b"").node_id
    nodes = {member.node_id for member in read_members(rows)} | _nodes(group.configuration)
    # A node that runs without being a member may register again; those that were members are out
    # of the replica sets with their rows.
    registered = {node.node_id for node in NODES.scan(rows)}
    commands: list[cmd.Command] = []
    for node in sorted(nodes - {own}):
        commands.append(cmd.RemoveMember(node))
        if node in registered:
            commands.append(cmd.RemoveNode(node))
    return [encode_checked(cmd.Request(now_ms, command)) for command in commands]


def make_alone(
    batch: Batch, name: GroupName, loaded: Loaded, node_id: int, requests: Sequence[bytes] = ()
) -> None:
    """Make a node the only voter of a group, and all entries of its log committed."""
    family, group = name.log_family, name.number
    term = loaded.hard_state[0] + 1
    applied = loaded.applied[0]
    for index, row in loaded.rows:
        entry = fmt.decode_entry(index, row)
        if index > applied and entry.kind != fmt.ENTRY_NORMAL:
            empty = fmt.Entry(index=index, term=entry.term, data=b"")
            batch.put(family, fmt.entry_key(group, index), fmt.encode_entry(empty))
    last = _last(loaded)
    for request in requests:
        last += 1
        added = fmt.Entry(index=last, term=term, data=request)
        batch.put(family, fmt.entry_key(group, last), fmt.encode_entry(added))
    alone = fmt.Configuration(voters=(node_id,))
    batch.put(family, fmt.configuration_key(group), fmt.encode_configuration(alone))
    batch.put(family, fmt.hard_state_key(group), fmt.HARD_STATE.pack(term, 0, last))


def _last(group: Loaded) -> int:
    return group.rows[-1][0] if group.rows else group.cut[0]


def _nodes(configuration: fmt.Configuration) -> set[int]:
    return {
        *configuration.voters,
        *configuration.learners,
        *configuration.voters_outgoing,
        *configuration.learners_next,
    }
