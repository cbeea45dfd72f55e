"""Nodes, leases and producer ids."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.meta.events import Event, NodePut, NodeRemoved
from penstock.meta.state.answers import Rejected
from penstock.meta.state.constants import DRAINING, NODE_STATUSES, OFFLINE, ONLINE, STOPPING
from penstock.meta.state.keys import encode_key
from penstock.meta.state.metadata.commands import (
    AcquireLease,
    AllocateProducerIds,
    Change,
    Done,
    Heartbeat,
    LeaseResult,
    Moment,
    NodeResult,
    ProducerIds,
    PutMember,
    RegisterNode,
    ReleaseLease,
    RemoveMember,
    RemoveNode,
    RenewLease,
    SetNodeStatus,
)
from penstock.meta.state.metadata.data_loss import lose_replicas
from penstock.meta.state.metadata.replication import (
    Restart,
    all_drain_on,
    all_hand_over,
    all_replicate,
    fence_node,
    hand_over_leaders,
    remove_replicas,
    restart_node,
)
from penstock.meta.state.metadata.rows import BEATS_TABLE, LEASES, MEMBERS, NODES, STORES
from penstock.meta.state.metadata.shards import find_shard
from penstock.meta.state.model import INT_MAX, Lease, Member, Node, Store
from penstock.meta.state.view import View


def register_node(view: View, command: RegisterNode, moment: Moment) -> Change | Rejected:
    before = NODES.get(view, command.node_id)
    is_same_run = before is not None and "" != command.boot_id == before.boot_id
    is_draining = before is not None and before.is_draining and all_drain_on(view)
    node = Node(
        node_id=command.node_id,
        address=command.address,
        listeners=command.listeners,
        roles=command.roles,
        boot_id=command.boot_id,
        epoch=_epoch(view, before, moment, is_same_run=is_same_run),
        status=DRAINING if is_draining else ONLINE,
        registered_at_ms=moment.time_ms,
        free_bytes=command.free_bytes,
        is_draining=is_draining,
    )
    NODES.put(view, node, node.node_id)
    events: list[Event] = [NodePut(node)]
    known = STORES.get(view, node.node_id)
    is_new_store = command.store_id and (known is None or known.store_id != command.store_id)
    is_store_lost = bool(is_new_store) and known is not None
    if is_new_store:
        STORES.put(view, Store(node_id=node.node_id, store_id=command.store_id), node.node_id)
    if is_store_lost:
        events += lose_replicas(view, node.node_id, moment)
    restart = Restart(
        is_same_run=is_same_run and not is_store_lost,
        is_proven=(
            command.is_proven and before is not None and before.epoch == command.previous_epoch
        ),
        is_store_lost=is_store_lost,
    )
    events += restart_node(view, node.node_id, restart, moment)
    return Change(NodeResult(node), tuple(events))


def _epoch(view: View, before: Node | None, moment: Moment, *, is_same_run: bool) -> int:
    """Return the broker epoch of a node that registers. A node that only says more of itself, and
    was not fenced, keeps its epoch: what others know of its logs still holds."""
    if before is not None and is_same_run and before.status != OFFLINE and all_replicate(view):
        return before.epoch
    # The revision never repeats, not even when a node is removed and registers again.
    return moment.revision


def set_node_status(view: View, command: SetNodeStatus, moment: Moment) -> Change | Rejected:
    node = NODES.get(view, command.node_id)
    if node is None:
        return _unknown_node(command.node_id)
    is_known = command.status in NODE_STATUSES
    if command.status == STOPPING and not all_hand_over(view):
        is_known = False  # as on nodes of releases that do not know it
    if not is_known:
        return Rejected("bad_request", f"a node cannot be {command.status!r}")
    if command.epoch not in {None, node.epoch}:
        return Rejected("stale", f"node {node.node_id} has registered again since")
    changed = replace(node, status=command.status)
    if command.status in {DRAINING, ONLINE} and all_drain_on(view):
        # An operator says what becomes of the node, not whether it runs.
        status = node.status if node.status in {OFFLINE, STOPPING} else command.status
        changed = replace(node, status=status, is_draining=command.status == DRAINING)
    NODES.put(view, changed, node.node_id)
    events: list[Event] = [NodePut(changed)]
    if command.status == OFFLINE:
        events += fence_node(view, node.node_id, moment)
    elif command.status == STOPPING:
        events += hand_over_leaders(view, node.node_id, moment)
    return Change(NodeResult(changed), tuple(events))


def remove_node(view: View, command: RemoveNode, moment: Moment) -> Change | Rejected:
    if NODES.get(view, command.node_id) is None:
        return _unknown_node(command.node_id)
    NODES.delete(view, command.node_id)
    view.delete(encode_key(BEATS_TABLE, command.node_id))
    events = remove_replicas(view, command.node_id, moment)
    return Change(Done(), (NodeRemoved(command.node_id), *events))


def heartbeat(view: View, command: Heartbeat, moment: Moment) -> Change | Rejected:
    node = NODES.get(view, command.node_id)
    if node is None or node.status == OFFLINE or node.boot_id != command.boot_id:
        return _unknown_node(command.node_id)
    view.put(encode_key(BEATS_TABLE, command.node_id), moment.revision.to_bytes(8, "big"))
    return Change(Done())


def put_member(view: View, command: PutMember, _moment: Moment) -> Change | Rejected:
    member = Member(
        node_id=command.node_id, address=command.address, incarnation=command.incarnation
    )
    MEMBERS.put(view, member, member.node_id)
    return Change(Done())


def remove_member(view: View, command: RemoveMember, _moment: Moment) -> Change | Rejected:
    if MEMBERS.get(view, command.node_id) is None:
        return _unknown_node(command.node_id)
    MEMBERS.delete(view, command.node_id)
    return Change(Done())


def acquire_lease(view: View, command: AcquireLease, moment: Moment) -> Change | Rejected:
    shard = find_shard(view, command.topic_id, command.partition)
    if isinstance(shard, Rejected):
        return shard
    held = LEASES.get(view, command.topic_id, command.partition)
    is_free = held is None or held.until_ms <= moment.time_ms or held.holder == command.holder
    if held is not None and not is_free:
        return Rejected(
            "held", f"{held.holder} holds {shard.name} until {held.until_ms}", shard.name
        )
    lease = Lease(
        topic_id=command.topic_id,
        partition=command.partition,
        holder=command.holder,
        epoch=moment.revision,  # never given before, whatever became of the row
        until_ms=min(moment.time_ms + command.duration_ms, INT_MAX),
    )
    LEASES.put(view, lease, command.topic_id, command.partition)
    return Change(LeaseResult(lease))


def renew_lease(view: View, command: RenewLease, moment: Moment) -> Change | Rejected:
    # An expired lease can still be renewed: another holder would have changed its epoch, and the
    # epoch, not the clock, fences the holders.
    held = _own_lease(view, command)
    if isinstance(held, Rejected):
        return held
    lease = replace(held, until_ms=min(moment.time_ms + command.duration_ms, INT_MAX))
    LEASES.put(view, lease, command.topic_id, command.partition)
    return Change(LeaseResult(lease))


def release_lease(view: View, command: ReleaseLease, _moment: Moment) -> Change | Rejected:
    held = _own_lease(view, command)
    if isinstance(held, Rejected):
        return held
    LEASES.delete(view, command.topic_id, command.partition)
    return Change(Done())


def allocate_producer_ids(
    _view: View, command: AllocateProducerIds, moment: Moment
) -> Change | Rejected:
    first = moment.head.counter + 1
    if first + command.count > INT_MAX:
        return Rejected("bad_request", "the producer ids are used up")
    moment.head.counter += command.count
    return Change(ProducerIds(first, command.count))


def _own_lease(view: View, command: RenewLease | ReleaseLease) -> Lease | Rejected:
    held = LEASES.get(view, command.topic_id, command.partition)
    if held is None or (held.holder, held.epoch) != (command.holder, command.epoch):
        name = f"{command.topic_id}_{command.partition}"
        return Rejected(
            "stale", f"{command.holder} does not hold {name} under epoch {command.epoch}", name
        )
    return held


def _unknown_node(node_id: int) -> Rejected:
    return Rejected("unknown_node", f"node {node_id} is not registered", str(node_id))
