"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup and FindCoordinator."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.cluster_view import ClusterView
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.groups.coordinator import KafkaGroups, caller_of
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.groups.model import Join, Sync

_GROUP: Final = 0
_TRANSACTION: Final = 1
_NULL_PROTOCOL_FROM: Final = 7
"""JoinGroup: the first version whose responses may have no protocol."""


class GroupApi:
    def __init__(self, cluster: ClusterView, coordinator: KafkaGroups) -> None:
        self._cluster: Final = cluster
        self._coordinator: Final = coordinator

    async def find_coordinator(self, context: RequestContext, request: Fields) -> Response:
        key_type = request.number("key_type", _GROUP)
        if context.api_version < 4:
            coordinator = self._coordinator_of(request.text("key"), key_type)
            del coordinator["key"]
            return coordinator
        keys = request.texts("coordinator_keys")
        return {"coordinators": [self._coordinator_of(key, key_type) for key in keys]}

    def _coordinator_of(self, key: str, key_type: int) -> dict[str, object]:
        if key_type not in {_GROUP, _TRANSACTION}:
            message = "only groups of consumers and transactions have coordinators here"
            error = ErrorCode.invalid_request
        elif not key:
            message = "the name of a group or a transaction is empty"
            error = ErrorCode.invalid_group_id
        else:
            address = self._cluster.coordinator_of(key)
            if address is not None:
                return {"key": key, **address._asdict()}
            message = f"it is not known yet where the coordinator of {key!r} serves Kafka clients"
            error = ErrorCode.coordinator_not_available
        rejection = {"error_code": error, "error_message": message}
        return {"key": key, "node_id": -1, "host": "", "port": -1, **rejection}

    async def join_group(self, context: RequestContext, request: Fields) -> Response:
        session_ms = request.number("session_timeout")
        rebalance_ms = request.number("rebalance_timeout", -1)
        protocols = [
            (protocol.text("name"), protocol.blob("metadata"))
            for protocol in request.items_of("protocols")
        ]
        joined = await self._coordinator.join(
            request.text("group_id"),
            Join(
                member_id=request.text("member_id"),
                instance_id=request.optional_text("group_instance_id"),
                client_id=context.client_id,
                client_host=context.peer,
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms if rebalance_ms >= 0 else session_ms,
                protocol_type=request.text("protocol_type"),
                protocols=tuple(protocols),
                requires_known_id=context.api_version >= 4,
                can_skip_assignment=context.api_version >= 9,
            ),
        )
        nothing = None if context.api_version >= _NULL_PROTOCOL_FROM else ""
        return {
            "error_code": ErrorCode(joined.error),
            "generation_id": joined.generation,
            "protocol_type": joined.protocol_type,
            "protocol_name": nothing if joined.protocol is None else joined.protocol,
            "leader": joined.leader,
            "skip_assignment": joined.skip_assignment,
            "member_id": joined.member_id,
            "members": [
                {
                    "member_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "metadata": member.metadata,
                }
                for member in joined.members
            ],
        }

    async def sync_group(self, _context: RequestContext, request: Fields) -> Response:
        assignments = [
            (assignment.text("member_id"), assignment.blob("assignment"))
            for assignment in request.items_of("assignments")
        ]
        synced = await self._coordinator.sync(
            request.text("group_id"),
            Sync(
                caller=caller_of(request),
                assignments=tuple(assignments),
                protocol_type=request.optional_text("protocol_type"),
                protocol=request.optional_text("protocol_name"),
            ),
        )
        return {
            "error_code": ErrorCode(synced.error),
            "protocol_type": synced.protocol_type,
            "protocol_name": synced.protocol,
            "assignment": synced.assignment,
        }

    async def heartbeat(self, _context: RequestContext, request: Fields) -> Response:
        error = self._coordinator.heartbeat(request.text("group_id"), caller_of(request))
        return {"error_code": error}

    async def leave_group(self, context: RequestContext, request: Fields) -> Response:
        group_id = request.text("group_id")
        if context.api_version < 3:
            return {
                "error_code": self._coordinator.leave(group_id, request.text("member_id"), None)
            }
        members: list[Response] = []
        for member in request.items_of("members"):
            member_id = member.text("member_id")
            instance_id = member.optional_text("group_instance_id")
            error = self._coordinator.leave(group_id, member_id, instance_id)
            members.append(
                {"member_id": member_id, "group_instance_id": instance_id, "error_code": error}
            )
        return {"error_code": ErrorCode.none, "members": members}
