"""Groups as administrators see them: DescribeGroups, ListGroups, DeleteGroups."""

from __future__ import annotations

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.coordinators import elsewhere
from holdfast.embedded.apis.describing import NOT_ASKED
from holdfast.embedded.apis.groups.group_members import at_once
from holdfast.embedded.groups.group import EmbeddedGroup, MemberHome
from holdfast.embedded.internal_log import OFFSETS
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation, AclResource
from holdfast.models.group_coordinator.types import ClassicMember, DeleteGroup, GroupState

FIRST_NOT_FOUND = 6
"""The first version of DescribeGroups with an error for a missing group: older ones call it dead."""
_UNKNOWN_HOME = MemberHome("", "")


def describe_groups(call: Call) -> Fields:
    """Answer DescribeGroups."""
    return {"groups": [_described(call, each) for each in dict.fromkeys(call.fields["groups"])]}


def _described(call: Call, group_id: str) -> Fields:
    asked = call.fields["include_authorized_operations"]
    may = call.operations(AclResource.GROUP, group_id) if asked else NOT_ASKED
    answer: Fields = {"group_id": group_id}
    if not call.may_group(AclOperation.DESCRIBE, group_id):
        code = KafkaCode.GROUP_AUTHORIZATION_FAILED
        return {**answer, "error_code": code, "group_state": ""}
    if (elsewhere(call, OFFSETS, group_id)) is not None:
        return {**answer, "error_code": KafkaCode.NOT_COORDINATOR, "group_state": ""}
    group = call.cluster.groups.get(group_id)
    if group is None or group.modern is not None:
        missing = KafkaCode.GROUP_ID_NOT_FOUND if call.version >= FIRST_NOT_FOUND else KafkaCode.NONE
        text = (
            f"Group {group_id} not found." if group is None else f"Group {group_id} is not a classic group."
        )
        told = text if call.version >= FIRST_NOT_FOUND else None
        operations = may if missing is KafkaCode.NONE else NOT_ASKED
        return {
            **answer,
            "error_code": missing,
            "error_message": told,
            "authorized_operations": operations,
            "group_state": str(GroupState.DEAD),
        }
    stable = group.classic.state is GroupState.STABLE
    return {
        **answer,
        "error_code": KafkaCode.NONE,
        "authorized_operations": may,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.classic.protocol if stable else "",
        "members": [_member(group, each, stable) for each in group.classic.members],
    }


def _member(group: EmbeddedGroup, member: ClassicMember, stable: bool) -> Fields:
    home = group.homes.get(member.member_id, _UNKNOWN_HOME)
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": home.client_id,
        "client_host": home.host,
        "member_metadata": member.subscription(group.classic.protocol) if stable else b"",
        "member_assignment": member.assignment if stable else b"",
    }


def list_groups(call: Call) -> Fields:
    """Answer ListGroups."""
    all_of_them = call.may_cluster(AclOperation.DESCRIBE)
    states = {each.lower() for each in call.fields["states_filter"]}
    kinds = {each.lower() for each in call.fields["types_filter"]}
    return {
        "error_code": KafkaCode.NONE,
        "groups": [
            {
                "group_id": each.group_id,
                "protocol_type": each.protocol_type if each.modern is None else "consumer",
                "group_state": each.state,
                "group_type": each.kind,
            }
            for each in call.cluster.groups.every()
            if elsewhere(call, OFFSETS, each.group_id) is None
            and (all_of_them or call.may_group(AclOperation.DESCRIBE, each.group_id))
            and (not states or each.state.lower() in states)
            and (not kinds or each.kind in kinds)
        ],
    }


def delete_groups(call: Call) -> Fields:
    """Answer DeleteGroups."""
    return {
        "results": [
            {"group_id": each, "error_code": _deleted(call, each)}
            for each in dict.fromkeys(call.fields["groups_names"])
        ]
    }


def _deleted(call: Call, group_id: str) -> int:
    groups = call.cluster.groups
    if not call.may_group(AclOperation.DELETE, group_id):
        return KafkaCode.GROUP_AUTHORIZATION_FAILED
    if (code := elsewhere(call, OFFSETS, group_id)) is not None:
        return code
    group = groups.get(group_id)
    if group is None:
        return KafkaCode.GROUP_ID_NOT_FOUND
    if not group.is_empty:
        return KafkaCode.NON_EMPTY_GROUP
    code_of_model = at_once(groups.take(group, DeleteGroup(request=groups.number()))).code
    groups.delete(group)
    return code_of_model
