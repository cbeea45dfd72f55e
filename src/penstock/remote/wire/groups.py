"""Members of groups as messages of `storage.proto`."""

from __future__ import annotations

from penstock.api import GroupInfo, GroupMember
from penstock.groups.codes import GroupCode
from penstock.groups.model import Caller, Join, Joined, JoinedMember, Sync, Synced
from penstock.record import Offset
from penstock.remote import storage_pb2 as pb
from penstock.remote.wire import records as wire

_NO_OFFSET = Offset(0)


def caller_to_wire(name: pb.GroupName | None, caller: Caller) -> pb.GroupCaller:
    return pb.GroupCaller(
        name=name,
        member_id=caller.member_id,
        generation=caller.generation,
        instance_id=caller.instance_id,
    )


def caller_from_wire(caller: pb.GroupCaller) -> Caller:
    instance_id = caller.instance_id if caller.HasField("instance_id") else None
    return Caller(caller.member_id, caller.generation, instance_id)


def join_to_wire(name: pb.GroupName, join: Join, seconds: float) -> pb.GroupJoin:
    return pb.GroupJoin(
        caller=caller_to_wire(name, Caller(join.member_id, instance_id=join.instance_id)),
        client_id=join.client_id,
        client_host=join.client_host,
        session_timeout_ms=join.session_timeout_ms,
        rebalance_timeout_ms=join.rebalance_timeout_ms,
        protocol_type=join.protocol_type,
        protocols=[pb.GroupProtocol(name=name, metadata=data) for name, data in join.protocols],
        wait_s=seconds,
    )


def join_from_wire(request: pb.GroupJoin) -> Join:
    caller = caller_from_wire(request.caller)
    return Join(
        member_id=caller.member_id,
        instance_id=caller.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        requires_known_id=True,
        skips_delay=True,
    )


def joined_to_wire(joined: Joined) -> pb.GroupJoined:
    return pb.GroupJoined(
        code=joined.error,
        member_id=joined.member_id,
        generation=joined.generation,
        protocol=joined.protocol or "",
        leader=joined.leader,
        members=[
            pb.GroupPart(
                member_id=member.member_id, instance_id=member.instance_id, data=member.metadata
            )
            for member in joined.members
        ],
    )


def joined_from_wire(reply: pb.GroupJoined) -> Joined:
    return Joined(
        error=code_from_wire(reply.code),
        member_id=reply.member_id,
        generation=reply.generation,
        protocol=reply.protocol,
        leader=reply.leader,
        members=tuple(
            JoinedMember(
                member.member_id,
                member.instance_id if member.HasField("instance_id") else None,
                member.data,
            )
            for member in reply.members
        ),
    )


def sync_to_wire(name: pb.GroupName, sync: Sync, seconds: float) -> pb.GroupSync:
    return pb.GroupSync(
        caller=caller_to_wire(name, sync.caller),
        assignments=[
            pb.GroupPart(member_id=member_id, data=data) for member_id, data in sync.assignments
        ],
        protocol_type=sync.protocol_type or "",
        protocol=sync.protocol or "",
        wait_s=seconds,
    )


def sync_from_wire(request: pb.GroupSync) -> Sync:
    return Sync(
        caller_from_wire(request.caller),
        tuple((part.member_id, part.data) for part in request.assignments),
        request.protocol_type or None,
        request.protocol or None,
    )


def synced_to_wire(synced: Synced) -> pb.GroupSynced:
    return pb.GroupSynced(code=synced.error, assignment=synced.assignment)


def synced_from_wire(reply: pb.GroupSynced) -> Synced:
    return Synced(code_from_wire(reply.code), reply.assignment)


def code_from_wire(code: int) -> GroupCode:
    try:
        return GroupCode(code)
    except ValueError:  # of a newer server
        return GroupCode.invalid_request


def info_to_wire(info: GroupInfo) -> pb.GroupReply:
    return pb.GroupReply(
        name=pb.GroupName(namespace=info.namespace, group=info.group),
        last_commit_ms=info.last_commit_ms,
        offsets=wire.positions_to_wire(info.offsets),
        lag=wire.positions_to_wire(info.lag),
        state=info.state,
        protocol=info.protocol,
        members=[
            pb.GroupMember(
                member_id=member.member_id,
                client_id=member.client_id,
                client_host=member.client_host,
                instance_id=member.instance_id,
                partitions=wire.positions_to_wire(dict.fromkeys(member.partitions, _NO_OFFSET)),
            )
            for member in info.members
        ],
        problems=[
            pb.PartitionProblem(topic=topic, partition=partition, problem=problem)
            for (topic, partition), problem in info.problems.items()
        ],
    )


def info_from_wire(reply: pb.GroupReply) -> GroupInfo:
    members = tuple(
        GroupMember(
            member.member_id,
            member.client_id,
            member.client_host,
            member.instance_id if member.HasField("instance_id") else None,
            tuple(wire.positions_from_wire(member.partitions)),
        )
        for member in reply.members
    )
    return GroupInfo(
        group=reply.name.group,
        namespace=reply.name.namespace,
        last_commit_ms=reply.last_commit_ms,
        offsets=wire.positions_from_wire(reply.offsets),
        lag={place: int(lag) for place, lag in wire.positions_from_wire(reply.lag).items()},
        state=reply.state or "Empty",
        protocol=reply.protocol,
        members=members,
        problems={(entry.topic, entry.partition): entry.problem for entry in reply.problems},
    )
