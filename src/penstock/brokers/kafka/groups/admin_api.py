"""ListGroups, DescribeGroups and DeleteGroups: groups with members, and those with offsets only."""

from __future__ import annotations

from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from penstock.brokers.kafka.broker import KafkaBroker
from penstock.brokers.kafka.context import RequestContext
from penstock.brokers.kafka.groups.coordinator import KafkaGroups
from penstock.brokers.kafka.groups.offset_api import commit_code_of
from penstock.brokers.kafka.wire.fields import Fields, Response
from penstock.errors import StoreError
from penstock.groups.consumer_protocol import CONSUMER
from penstock.groups.model import GroupState
from penstock.groups.state_machine import GroupMachine

CLASSIC: Final = "classic"
_NOT_ASKED: Final = -(1 << 31)
_SAYS_UNKNOWN_FROM: Final = 6
"""DescribeGroups: the first version with an error for a group that does not exist."""


class GroupAdminApi:
    def __init__(self, broker: KafkaBroker, coordinator: KafkaGroups) -> None:
        self._broker: Final = broker
        self._coordinator: Final = coordinator

    async def list_groups(self, _context: RequestContext, request: Fields) -> Response:
        states = {state.lower() for state in request.texts("states_filter")}
        types = {kind.lower() for kind in request.texts("types_filter")}
        namespace = self._broker.namespace
        try:
            kept = await self._broker.run_blocking(
                partial(self._broker.offsets.list_groups, namespace)
            )
        except StoreError as error:
            return {"error_code": commit_code_of(error), "groups": ()}
        states_by_group = {group.group: (CONSUMER, GroupState.EMPTY) for group in kept}
        for group_id, machine in self._coordinator.with_members():
            states_by_group[group_id] = (machine.members.protocol_type or "", machine.state)
        groups = [
            {
                "group_id": group_id,
                "protocol_type": protocol_type,
                "group_state": state.value,
                "group_type": CLASSIC,
            }
            for group_id, (protocol_type, state) in sorted(states_by_group.items())
            if (not states or state.value.lower() in states) and (not types or CLASSIC in types)
        ]
        return {"error_code": ErrorCode.none, "groups": groups}

    async def describe_groups(self, context: RequestContext, request: Fields) -> Response:
        groups = [await self._describe(group_id, context) for group_id in request.texts("groups")]
        return {"groups": groups}

    async def _describe(self, group_id: str, context: RequestContext) -> Response:
        if group_id and not self._broker.groups.is_here(group_id):
            response = _without_members(group_id, GroupState.DEAD, "")
            response["error_code"] = ErrorCode.not_coordinator
            return response
        machine = self._coordinator.find(group_id)
        if machine is not None:
            return _described(group_id, machine)
        if await self._has_offsets(group_id):
            return _without_members(group_id, GroupState.EMPTY, CONSUMER)
        response = _without_members(group_id, GroupState.DEAD, "")
        if context.api_version >= _SAYS_UNKNOWN_FROM:
            response["error_code"] = ErrorCode.group_id_not_found
            response["error_message"] = f"group {group_id} does not exist"
        return response

    async def delete_groups(self, _context: RequestContext, request: Fields) -> Response:
        results: list[Response] = [
            {"group_id": group_id, "error_code": await self._delete(group_id)}
            for group_id in request.texts("groups_names")
        ]
        return {"results": results}

    async def _delete(self, group_id: str) -> ErrorCode:
        if not group_id:
            return ErrorCode.invalid_group_id
        if not self._broker.groups.is_here(group_id):
            return ErrorCode.not_coordinator  # its members are known there
        if self._coordinator.find(group_id) is not None:
            return ErrorCode.non_empty_group
        delete = partial(
            self._broker.offsets.delete_group, group_id, namespace=self._broker.namespace
        )
        try:
            await self._broker.run_blocking(delete)
        except StoreError as error:
            return commit_code_of(error)
        return ErrorCode.none

    async def _has_offsets(self, group_id: str) -> bool:
        if not group_id:
            return False
        find = partial(self._broker.offsets.get_group, group_id, namespace=self._broker.namespace)
        return await self._broker.run_blocking(find) is not None


def _described(group_id: str, machine: GroupMachine) -> Response:
    members = machine.members
    is_settled = machine.state in {GroupState.STABLE, GroupState.COMPLETING}
    protocol = (members.protocol or "") if is_settled else ""
    return {
        "error_code": ErrorCode.none,
        "group_id": group_id,
        "group_state": machine.state.value,
        "protocol_type": members.protocol_type or "",
        "protocol_data": protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata_of(protocol) if protocol else b"",
                "member_assignment": member.assignment
                if machine.state is GroupState.STABLE
                else b"",
            }
            for member in members
        ],
        "authorized_operations": _NOT_ASKED,
    }


def _without_members(group_id: str, state: GroupState, protocol_type: str) -> dict[str, object]:
    return {
        "error_code": ErrorCode.none,
        "group_id": group_id,
        "group_state": state.value,
        "protocol_type": protocol_type,
        "protocol_data": "",
        "members": (),
        "authorized_operations": _NOT_ASKED,
    }
