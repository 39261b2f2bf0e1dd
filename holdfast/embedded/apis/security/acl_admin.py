"""Access control lists as administrators see and change them: DescribeAcls, CreateAcls, DeleteAcls."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.kafka.wire import WireReason
from holdfast.embedded.apis.call import NO_KEPT_ROOM, Call, Fields
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import (
    CLUSTER_NAME,
    AclFilter,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    AclRule,
    known,
)
from holdfast.embedded.security.authorizer import LIMIT_RULES
from holdfast.errors import WireError

_MANY_RULES = f"There are {LIMIT_RULES} rules already: delete some first."
_NO_AUTHORIZER = "No Authorizer is configured"


def describe_acls(call: Call) -> Fields:
    """Answer DescribeAcls."""
    if not call.may_cluster(AclOperation.DESCRIBE):
        text = "Request DescribeAcls needs DESCRIBE permission."
        return {"error_code": KafkaCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": text}
    if call.cluster.authorizer is None:
        code, text = KafkaCode.SECURITY_DISABLED, f"{_NO_AUTHORIZER} on the broker"
        return {"error_code": code, "error_message": text}
    return {"resources": _by_resource(call.cluster.authorizer.found(_filter(call.fields)))}


def _filter(told: Fields) -> AclFilter:
    wanted = AclFilter(
        resource=known(AclResource, told["resource_type_filter"]),
        name=told["resource_name_filter"],
        pattern=known(AclPattern, told["pattern_type_filter"]),
        principal=told["principal_filter"],
        host=told["host_filter"],
        operation=known(AclOperation, told["operation"]),
        permission=known(AclPermission, told["permission_type"]),
    )
    _refuse_unknown(wanted)
    return wanted


def _by_resource(rules: Iterable[AclRule]) -> list[Fields]:
    found: dict[tuple[AclResource, str, AclPattern], list[Fields]] = {}
    for each in rules:
        found.setdefault((each.resource, each.name, each.pattern), []).append(_entry(each))
    return [
        {"resource_type": resource, "resource_name": name, "pattern_type": pattern, "acls": acls}
        for (resource, name, pattern), acls in found.items()
    ]


def _entry(rule: AclRule) -> Fields:
    return {
        "principal": rule.principal,
        "host": rule.host,
        "operation": rule.operation,
        "permission_type": rule.permission,
    }


# -- changing


def _refused(call: Call, api: str) -> Fields | None:
    """Return the answer for each change that *call* wants, where it may change none."""
    if not call.may_cluster(AclOperation.ALTER):
        text = f"Request {api} needs ALTER permission."
        return {"error_code": KafkaCode.CLUSTER_AUTHORIZATION_FAILED, "error_message": text}
    if call.cluster.authorizer is None:
        return {"error_code": KafkaCode.SECURITY_DISABLED, "error_message": f"{_NO_AUTHORIZER}."}
    return None


def create_acls(call: Call) -> Fields:
    """Answer CreateAcls."""
    refused = _refused(call, "CreateAcls")
    if refused is None and not call.has_room():
        refused = {"error_code": KafkaCode.POLICY_VIOLATION, "error_message": NO_KEPT_ROOM}
    return {"results": [refused or _created(call, each) for each in call.fields["creations"]]}


def _created(call: Call, told: Fields) -> Fields:
    rule = AclRule(
        resource=known(AclResource, told["resource_type"]),
        name=told["resource_name"],
        principal=told["principal"],
        operation=known(AclOperation, told["operation"]),
        pattern=known(AclPattern, told["resource_pattern_type"]),
        permission=known(AclPermission, told["permission_type"]),
        host=told["host"],
    )
    _refuse_unknown(rule)
    if (text := _trouble(rule)) is not None:
        return {"error_code": KafkaCode.INVALID_REQUEST, "error_message": text}
    if _is_of_filters(rule):
        return {"error_code": KafkaCode.UNKNOWN_SERVER_ERROR, "error_message": None}
    assert call.cluster.authorizer is not None
    if not call.cluster.authorizer.has_room(rule):
        return {"error_code": KafkaCode.POLICY_VIOLATION, "error_message": _MANY_RULES}
    call.cluster.authorizer.add(rule)
    return {"error_code": KafkaCode.NONE}


def _refuse_unknown(told: AclRule | AclFilter) -> None:
    """Raise WireError, which ends the connection, for numbers that Kafka does not know either."""
    unknown = [name for name, value in told._asdict().items() if value == 0]
    if unknown:
        raise WireError(f"{unknown[0]} is unknown", offset=0, reason=WireReason.RANGE)


def _trouble(rule: AclRule) -> str | None:
    if rule.resource is AclResource.CLUSTER and rule.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not rule.name:
        return "Invalid empty resource name"
    if ":" not in rule.principal:
        told = "no colon is present separating the principal type from the principal name"
        return f"Could not parse principal from `{rule.principal}` ({told})"
    return None


def _is_of_filters(rule: AclRule) -> bool:
    """Return whether *rule* says "any", over which Kafka's controller stumbles."""
    any_of = (AclResource.ANY, AclPattern.ANY, AclPattern.MATCH, AclOperation.ANY, AclPermission.ANY)
    said = (rule.resource, rule.pattern, rule.pattern, rule.operation, rule.permission)
    return any(one is other for one, other in zip(any_of, said, strict=True))


def delete_acls(call: Call) -> Fields:
    """Answer DeleteAcls."""
    filters = call.fields["filters"]
    if (refused := _refused(call, "DeleteAcls")) is not None:
        return {"filter_results": [refused] * len(filters)}
    assert call.cluster.authorizer is not None
    taken = call.cluster.authorizer.taken([_filter(each) for each in filters])
    return {"filter_results": [_deleted(each) for each in taken]}


def _deleted(found: Iterable[AclRule]) -> Fields:
    return {
        "error_code": KafkaCode.NONE,
        "error_message": None,
        "matching_acls": [_matching(each) for each in found],
    }


def _matching(rule: AclRule) -> Fields:
    named = {"resource_type": rule.resource, "resource_name": rule.name, "pattern_type": rule.pattern}
    return {"error_code": KafkaCode.NONE, "error_message": None, **named, **_entry(rule)}
