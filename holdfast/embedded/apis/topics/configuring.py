"""Settings read and changed: ListConfigResources, DescribeConfigs, IncrementalAlterConfigs, AlterConfigs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from holdfast.embedded.apis.call import NO_KEPT_ROOM, Call, Fields
from holdfast.embedded.configs.broker import broker_settings
from holdfast.embedded.configs.topic import IN_SYNC, SETTINGS, ConfigKind, ConfigSource, troubles
from holdfast.embedded.protocol.codes import (
    FORBIDDEN_CLUSTER,
    FORBIDDEN_GROUP,
    FORBIDDEN_TOPIC,
    MALFORMED,
    KafkaCode,
)
from holdfast.embedded.security.acl_rules import CLUSTER_NAME, AclOperation, AclResource
from holdfast.embedded.topics.partition import EmbeddedTopic
from holdfast.embedded.topics.registry import name_trouble

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
_REPLACEABLE = {TOPIC, BROKER, CLIENT_METRICS, GROUP}
"""The kinds of resources whose settings AlterConfigs knows."""
_KINDS = {0: "UNKNOWN", 2: "TOPIC", 4: "BROKER", 8: "BROKER_LOGGER", 16: "CLIENT_METRICS", 32: "GROUP"}


class _Told(NamedTuple):
    """The outcome of an alteration."""

    code: KafkaCode = KafkaCode.NONE
    text: str | None = None


class _Change(NamedTuple):
    """The settings to set on a topic."""

    topic: EmbeddedTopic
    after: dict[str, str]


_CLUSTER = AclResource.CLUSTER, KafkaCode.CLUSTER_AUTHORIZATION_FAILED, FORBIDDEN_CLUSTER
_GUARDED = {
    TOPIC: (AclResource.TOPIC, KafkaCode.TOPIC_AUTHORIZATION_FAILED, FORBIDDEN_TOPIC),
    GROUP: (AclResource.GROUP, KafkaCode.GROUP_AUTHORIZATION_FAILED, FORBIDDEN_GROUP),
    BROKER: _CLUSTER,
    LOGGER: _CLUSTER,
}
"""For each kind of resource, the rules that guard its settings, and the answer for clients that may not see
or change them.
"""


def list_config_resources(call: Call) -> Fields:
    """Answer ListConfigResources: what could have settings, or, of groups and client metrics, has some, which
    is none here.
    """
    if not call.may_cluster(AclOperation.DESCRIBE_CONFIGS):
        return {"error_code": KafkaCode.CLUSTER_AUTHORIZATION_FAILED}
    known = {TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP} if call.version >= 1 else {CLIENT_METRICS}
    wanted = set(call.fields["resource_types"]) or known
    if not wanted <= known:
        return {"error_code": KafkaCode.UNSUPPORTED_VERSION}
    brokers = [str(each.node_id) for each in call.cluster.alive]
    names = {TOPIC: [each.name for each in call.cluster.topics], BROKER: brokers, LOGGER: brokers}
    found = [(kind, name) for kind in wanted for name in names.get(kind, ())]
    return {"config_resources": [{"resource_type": kind, "resource_name": name} for kind, name in found]}


def describe_configs(call: Call) -> Fields:
    """Answer DescribeConfigs."""
    once = {(each["resource_type"], each["resource_name"]): each for each in call.fields["resources"]}
    return {"results": [_described(call, each) for each in once.values()]}


def _described(call: Call, told: Fields) -> Fields:
    kind, name, keys = told["resource_type"], told["resource_name"], told["configuration_keys"]
    wanted = None if not keys else set(keys)
    code, text, configs = KafkaCode.NONE, "", []
    forbidden = _forbidden(call, AclOperation.DESCRIBE_CONFIGS, told)
    if not _KINDS.get(kind):
        code, text = KafkaCode.INVALID_REQUEST, MALFORMED
    elif forbidden is not None:
        code, text = forbidden.code, forbidden.text or ""
    elif kind == TOPIC and (topic := call.cluster.topics.get(name)) is not None:
        configs = [topic_config(topic, each) for each in SETTINGS if wanted is None or each in wanted]
    elif kind == TOPIC and (trouble := name_trouble(name)) is not None:
        code, text = KafkaCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {trouble}"
    elif kind == TOPIC:
        code = KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    elif kind == BROKER and (wrong := _wrong_broker(call, name)) is not None:
        code, text = KafkaCode.INVALID_REQUEST, wrong
    elif kind == BROKER and name:
        found = broker_settings(call.cluster.settings)
        configs = [each for each in found if wanted is None or each["name"] in wanted]
    elif kind != BROKER:
        code, text = KafkaCode.INVALID_REQUEST, MALFORMED
    return {
        "error_code": code,
        "error_message": text,
        "resource_type": kind,
        "resource_name": name,
        "configs": [_without(each, call.fields) for each in configs],
    }


def _forbidden(call: Call, operation: AclOperation, told: Fields) -> _Told | None:
    """Return the error for a client that may not do *operation* to the settings of a resource."""
    kind = told["resource_type"]
    about, code, text = _GUARDED.get(kind, _GUARDED[BROKER])
    name = CLUSTER_NAME if about is AclResource.CLUSTER else told["resource_name"]
    return None if call.may(operation, about, name) else _Told(code, text)


def _wrong_broker(call: Call, name: str) -> str | None:
    if not name:
        return None
    try:
        number = int(name)
    except ValueError:
        return f"Broker id must be an integer, but it is: {name}"
    text = f"Unexpected broker id, expected {call.node_id} or empty string, but received {name}"
    return None if number == call.node_id else text


def _without(config: Fields, asked: Fields) -> Fields:
    return config if asked["include_synonyms"] else {**config, "synonyms": []}


def topic_config(topic: EmbeddedTopic, name: str) -> Fields:
    """Return a setting of *topic* as DescribeConfigs shows it."""
    setting, own = SETTINGS[name], topic.configs.own.get(name)
    default = topic.configs.default(name)
    dynamic = ConfigSource.DYNAMIC_DEFAULT if name == IN_SYNC else ConfigSource.DEFAULT
    changed = ConfigSource.STATIC if default != setting.default and name != IN_SYNC else dynamic
    synonyms = [] if own is None else [(name, own, ConfigSource.TOPIC)]
    if setting.server:
        synonyms.append((setting.server, default, changed))
    if name == IN_SYNC:
        synonyms.append((setting.server, default, ConfigSource.STATIC))
    if setting.server and changed is not ConfigSource.DEFAULT:
        synonyms.append((setting.server, setting.default, ConfigSource.DEFAULT))
    return {
        "name": name,
        "value": default if own is None else own,
        "read_only": False,
        "config_source": changed if own is None else ConfigSource.TOPIC,
        "is_sensitive": False,
        "synonyms": [{"name": which, "value": value, "source": source} for which, value, source in synonyms],
        "config_type": setting.kind,
        "documentation": None,
    }


# -- changing


def incremental_alter_configs(call: Call) -> Fields:
    """Answer IncrementalAlterConfigs."""
    asked = call.fields["resources"]
    counts = Counter((each["resource_type"], each["resource_name"]) for each in asked)
    once = _Told(KafkaCode.INVALID_REQUEST, "Each resource must appear at most once.")
    return _answered(
        call,
        [
            once if counts[each["resource_type"], each["resource_name"]] > 1 else _altered(call, each)
            for each in asked
        ],
    )


def _answered(call: Call, found: list[_Told | _Change]) -> Fields:
    """Have the changes that may be made be made, all at once, and answer the others."""
    if not call.has_room():
        full = _Told(KafkaCode.POLICY_VIOLATION, NO_KEPT_ROOM)
        found = [full if isinstance(each, _Change) else each for each in found]
    if not call.fields["validate_only"]:
        call.cluster.topics.configure({each.topic: each.after for each in found if isinstance(each, _Change)})
    return {
        "responses": [
            _answer(asked, _Told() if isinstance(each, _Change) else each)
            for asked, each in zip(call.fields["resources"], found, strict=True)
        ]
    }


def alter_configs(call: Call) -> Fields:
    """Answer AlterConfigs, which replaces all that is set."""
    asked = call.fields["resources"]
    counts = Counter((each["resource_type"], each["resource_name"]) for each in asked)
    once = _Told(KafkaCode.INVALID_REQUEST, "Duplicate resource.")
    return _answered(
        call,
        [
            once if counts[each["resource_type"], each["resource_name"]] > 1 else _replaced(call, each)
            for each in asked
        ],
    )


def _answer(told: Fields, what: _Told) -> Fields:
    return {
        "error_code": what.code,
        "error_message": what.text,
        "resource_type": told["resource_type"],
        "resource_name": told["resource_name"],
    }


def _topic(call: Call, told: Fields) -> EmbeddedTopic | _Told:
    kind, name = told["resource_type"], told["resource_name"]
    if (forbidden := _forbidden(call, AclOperation.ALTER_CONFIGS, told)) is not None:
        return forbidden
    if kind == TOPIC and not name:
        return _Told(KafkaCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    if kind != TOPIC:
        return _Told(KafkaCode.INVALID_REQUEST, f"Unexpected resource type {_KINDS.get(kind, 'UNKNOWN')}.")
    topic = call.cluster.topics.get(name)
    return (
        _Told(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
        if topic is None
        else topic
    )


def _altered(call: Call, told: Fields) -> _Told | _Change:
    kind = told["resource_type"]
    if kind not in _KINDS:
        return _Told(KafkaCode.INVALID_REQUEST, f"Unknown resource type {kind}")
    topic = _topic(call, told)
    if isinstance(topic, _Told):
        return topic
    names = [each["name"] for each in told["configs"]]
    if len(set(names)) < len(names):
        return _Told(KafkaCode.INVALID_REQUEST, "Error due to duplicate config keys")
    if (unset := _unset(each for each in told["configs"] if each["config_operation"] != DELETE)) is not None:
        return unset
    after = dict(topic.configs.own)
    for each in told["configs"]:
        if (wrong := _applied(after, topic, each)) is not None:
            return wrong
    return _kept(topic, after)


def _unset(told: Iterable[Fields]) -> _Told | None:
    """Return Kafka's error for settings that have no value and need one."""
    names = [each["name"] for each in told if each["value"] is None]
    return (
        _Told(KafkaCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(names)}")
        if names
        else None
    )


def _applied(after: dict[str, str], topic: EmbeddedTopic, told: Fields) -> _Told | None:
    name, value, operation = told["name"], told["value"], told["config_operation"]
    if operation in (APPEND, SUBTRACT):
        setting = SETTINGS.get(name)
        word = "APPEND" if operation == APPEND else "SUBTRACT"
        if setting is None or setting.kind is not ConfigKind.LIST:
            what = "to" if operation == APPEND else "from"
            return _Told(
                KafkaCode.INVALID_CONFIG, f"Can't {word} {what} key {name} because its type is not LIST."
            )
        before = after.get(name) or topic.configs.default(name)
        after[name] = _joined(before.split(",") if before else [], value.split(","), add=operation == APPEND)
    elif operation == DELETE:
        after.pop(name, None)
    elif operation == SET:
        after[name] = value
    else:
        return _Told(KafkaCode.UNKNOWN_SERVER_ERROR)  # Kafka's controller throws
    return None


def _joined(before: Iterable[str], told: list[str], *, add: bool) -> str:
    there = list(before)
    gone = set(there if add else told)
    kept = [each for each in (told if add else there) if each not in gone]
    return ",".join([*there, *kept] if add else kept)


def _replaced(call: Call, told: Fields) -> _Told | _Change:
    if (kind := told["resource_type"]) not in _REPLACEABLE:
        return _Told(KafkaCode.INVALID_REQUEST, f"Unknown resource type {kind}")
    topic = _topic(call, told)
    if isinstance(topic, _Told):
        return topic
    if (unset := _unset(told["configs"])) is not None:
        return unset
    return _kept(topic, {each["name"]: each["value"] for each in told["configs"]})


def _kept(topic: EmbeddedTopic, after: dict[str, str]) -> _Told | _Change:
    for text in troubles(dict(after)):
        return _Told(KafkaCode.INVALID_CONFIG, text)
    return _Change(topic, after)
