"""The coordinator of a group or a transactional id: FindCoordinator, and the check that a request has come to
the right broker.
"""

from __future__ import annotations

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.internal_log import OFFSETS, TRANSACTIONS, home_of
from holdfast.embedded.protocol.codes import FORBIDDEN_GROUP, FORBIDDEN_ID, MALFORMED, KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation

GROUP, TRANSACTION = 0, 1
FIRST_OF_SEVERAL = 4
_TOPICS = {GROUP: OFFSETS, TRANSACTION: TRANSACTIONS}


def find_coordinator(call: Call) -> Fields:
    """Answer FindCoordinator."""
    if call.version >= FIRST_OF_SEVERAL:
        return {"coordinators": [_found(call, key) for key in call.fields["coordinator_keys"]]}
    found = _found(call, call.fields["key"])
    del found["key"]
    return {**found, "error_message": _word(found)}


def _word(found: Fields) -> str:
    return "NONE" if found["error_code"] == KafkaCode.NONE else found["error_message"]


def _found(call: Call, key: str) -> Fields:
    topic = _TOPICS.get(call.fields["key_type"])
    if topic is None:
        return _none(key, KafkaCode.INVALID_REQUEST, MALFORMED)
    if topic == OFFSETS and not call.may_group(AclOperation.DESCRIBE, key):
        return _none(key, KafkaCode.GROUP_AUTHORIZATION_FAILED, _old(call, FORBIDDEN_GROUP))
    if topic == TRANSACTIONS and not call.may_transact(AclOperation.DESCRIBE, key):
        return _none(key, KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, _old(call, FORBIDDEN_ID))
    node = call.cluster.nodes.get(home_of(call.cluster.topics, topic, key).leader)
    if node is None:
        return _none(key, KafkaCode.COORDINATOR_NOT_AVAILABLE)
    return {
        "key": key,
        "node_id": node.node_id,
        "host": node.host,
        "port": node.port,
        "error_code": KafkaCode.NONE,
        "error_message": "",
    }


def _old(call: Call, text: str) -> str:
    """Return *text* where Kafka says it: newer clients look at the code alone."""
    return text if call.version < FIRST_OF_SEVERAL else ""


def _none(key: str, code: KafkaCode, text: str = "") -> Fields:
    return {"key": key, "node_id": -1, "host": "", "port": -1, "error_code": code, "error_message": text}


def elsewhere(call: Call, topic: str, key: str) -> KafkaCode | None:
    """Return the error of a broker that does not coordinate *key*; None where it does."""
    home = home_of(call.cluster.topics, topic, key)
    return None if home.leader == call.node_id else KafkaCode.NOT_COORDINATOR
