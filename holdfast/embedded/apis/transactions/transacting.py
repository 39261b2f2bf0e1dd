"""Transactions: InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit,
WriteTxnMarkers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.core.kafka.producer_state import AppendOutcome
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.transaction_state import (
    EPOCH_PER_TRANSACTION,
    AddPartitions,
    CoordinatorCommand,
    EndTransaction,
    InitProducerId,
    VerifyPartition,
)
from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.apis.coordinators import elsewhere
from holdfast.embedded.apis.groups.group_members import misplaced
from holdfast.embedded.apis.groups.group_offsets import (
    asked_offsets,
    commit_trouble,
    commits,
    places_in,
    refused,
)
from holdfast.embedded.internal_log import OFFSETS, TRANSACTIONS, home_of
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation, AclResource
from holdfast.embedded.topics.registry import INTERNAL

_FIRST_FENCED = {"InitProducerId": 4, "AddPartitionsToTxn": 2, "AddOffsetsToTxn": 2, "EndTxn": 2}
"""The first version in which a client understands PRODUCER_FENCED; older ones get INVALID_PRODUCER_EPOCH."""
_BROKERS_OWN = 4
"""Of AddPartitionsToTxn: from then on several transactions, and the question whether a partition belongs to
one.
"""
_IMPLICIT, _KNOWS_ABORTABLE = 5, 4
"""For TxnOffsetCommit: from then on it adds the group's partition itself, or gets the error that it may only
abort.
"""


def _told(call: Call, api: str, code: int) -> int:
    fenced = code == KafkaCode.PRODUCER_FENCED and call.version < _FIRST_FENCED[api]
    return KafkaCode.INVALID_PRODUCER_EPOCH if fenced else code


def init_producer_id(call: Call) -> Fields:
    """Answer InitProducerId."""
    fields = call.fields
    name, told = fields["transactional_id"], (fields["producer_id"], fields["producer_epoch"])
    if (forbidden := _forbidden_to_begin(call, name)) is not None:
        return _no_producer(forbidden)
    if (told[0] == -1) is not (told[1] == -1) or name == "":
        return _no_producer(KafkaCode.INVALID_REQUEST)
    if name and not 0 < fields["transaction_timeout_ms"] <= call.cluster.settings.max_transaction_timeout_ms:
        return _no_producer(KafkaCode.INVALID_TRANSACTION_TIMEOUT)
    if name and (code := elsewhere(call, TRANSACTIONS, name)) is not None:
        return _no_producer(code)
    if name and not call.has_room():
        return _no_producer(KafkaCode.POLICY_VIOLATION)
    expected = told if told[0] != -1 else None
    command = InitProducerId(
        transactional_id=name, timeout_ms=fields["transaction_timeout_ms"], expected=expected
    )
    reply = call.cluster.transactions.do(command)
    if reply.error:
        return _no_producer(_told(call, "InitProducerId", reply.error))
    return {"error_code": KafkaCode.NONE, "producer_id": reply.producer_id, "producer_epoch": reply.epoch}


def _forbidden_to_begin(call: Call, transactional_id: str | None) -> KafkaCode | None:
    if transactional_id is not None:
        may = call.may_transact(AclOperation.WRITE, transactional_id)
        return None if may else KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    may = call.may_cluster(AclOperation.IDEMPOTENT_WRITE) or call.may_somewhere(
        AclOperation.WRITE, AclResource.TOPIC
    )
    return None if may else KafkaCode.CLUSTER_AUTHORIZATION_FAILED


def _no_producer(code: int) -> Fields:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}


# -- partitions


def add_partitions_to_txn(call: Call) -> Fields:
    """Answer AddPartitionsToTxn."""
    fields = call.fields
    if call.version >= _BROKERS_OWN and not call.may_cluster(AclOperation.CLUSTER_ACTION):
        return {"error_code": KafkaCode.CLUSTER_AUTHORIZATION_FAILED}
    if call.version >= _BROKERS_OWN:
        results = [
            {"transactional_id": each["transactional_id"], "topic_results": _added(call, each)}
            for each in fields["transactions"]
        ]
        return {"error_code": KafkaCode.NONE, "results_by_transaction": results}
    prefix = "v3_and_below_"
    told = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    return {"results_by_topic_v3_and_below": _added(call, {**told, "verify_only": False})}


def _added(call: Call, told: Fields) -> list[Fields]:
    places = [(each["name"], index) for each in told["topics"] for index in each["partitions"]]
    clients_own = call.version < _BROKERS_OWN
    if clients_own and not call.may_transact(AclOperation.WRITE, told["transactional_id"]):
        return _codes(told, dict.fromkeys(places, KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED))
    forbidden = {
        place
        for place in places
        if clients_own and (place[0] in INTERNAL or not call.may_topic(AclOperation.WRITE, place[0]))
    }
    unknown = {place for place in places if call.cluster.topics.partition(*place) is None}
    codes: dict[Place, int]
    if unknown or forbidden:
        codes = dict.fromkeys(places, KafkaCode.OPERATION_NOT_ATTEMPTED)
        codes |= dict.fromkeys(unknown, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
        codes |= dict.fromkeys(forbidden, KafkaCode.TOPIC_AUTHORIZATION_FAILED)
    elif not told["verify_only"] and not call.has_room():
        codes = dict.fromkeys(places, KafkaCode.POLICY_VIOLATION)
    elif told["verify_only"]:
        codes = {each: _verified(call, told, each) for each in places}
    else:
        codes = dict.fromkeys(places, _add(call, told, places))
    return _codes(told, codes)


def _codes(told: Fields, codes: Mapping[Place, int]) -> list[Fields]:
    return [
        {
            "name": each["name"],
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": codes[(each["name"], index)]}
                for index in each["partitions"]
            ],
        }
        for each in told["topics"]
    ]


def _add(call: Call, told: Fields, places: Iterable[Place]) -> int:
    name = told["transactional_id"]
    if name and (code := elsewhere(call, TRANSACTIONS, name)) is not None:
        return code
    command = AddPartitions(
        transactional_id=name,
        producer_id=told["producer_id"],
        epoch=told["producer_epoch"],
        partitions=tuple(places),
        client_version=EPOCH_PER_TRANSACTION if call.version >= _BROKERS_OWN else 0,
    )
    return _told(call, "AddPartitionsToTxn", call.cluster.transactions.do(command).error)


def _verified(call: Call, told: Fields, place: Place) -> int:
    command = VerifyPartition(
        transactional_id=told["transactional_id"],
        producer_id=told["producer_id"],
        epoch=told["producer_epoch"],
        partition=place,
    )
    return call.cluster.transactions.do(command).error


def admitted(
    call: Call,
    transactional_id: str,
    producer: tuple[int, int],
    places: tuple[Place, ...],
    *,
    adds: bool,
    abortable: bool,
) -> int:
    """Return the code with which the coordinator answers a leader that asks whether a transaction may write
    to *places*, of which there is one; with *adds* there may be several, and it may from now on (KIP-890).
    Clients that do not know *abortable* errors get another one.
    """
    command: CoordinatorCommand
    if adds:
        command = AddPartitions(
            transactional_id=transactional_id,
            producer_id=producer[0],
            epoch=producer[1],
            partitions=places,
            client_version=EPOCH_PER_TRANSACTION,
        )
    else:
        (place,) = places
        command = VerifyPartition(
            transactional_id=transactional_id, producer_id=producer[0], epoch=producer[1], partition=place
        )
    code: int = call.cluster.transactions.do(command).error
    if code == KafkaCode.PRODUCER_FENCED:
        return KafkaCode.INVALID_PRODUCER_EPOCH
    return KafkaCode.INVALID_TXN_STATE if code == KafkaCode.TRANSACTION_ABORTABLE and not abortable else code


def add_offsets_to_txn(call: Call) -> Fields:
    """Answer AddOffsetsToTxn."""
    fields = call.fields
    name = fields["transactional_id"]
    if (forbidden := _forbidden_to_write(call)) is not None:
        return {"error_code": forbidden}
    if not call.may_group(AclOperation.READ, fields["group_id"]):
        return {"error_code": KafkaCode.GROUP_AUTHORIZATION_FAILED}
    if name and (code := elsewhere(call, TRANSACTIONS, name)) is not None:
        return {"error_code": code}
    home = home_of(call.cluster.topics, OFFSETS, fields["group_id"])
    command = AddPartitions(
        transactional_id=name,
        producer_id=fields["producer_id"],
        epoch=fields["producer_epoch"],
        partitions=((home.topic, home.index),),
    )
    return {"error_code": _told(call, "AddOffsetsToTxn", call.cluster.transactions.do(command).error)}


def _forbidden_to_write(call: Call) -> KafkaCode | None:
    may = call.may_transact(AclOperation.WRITE, call.fields["transactional_id"])
    return None if may else KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def txn_offset_commit(call: Call) -> Fields:
    """Answer TxnOffsetCommit."""
    fields, groups, asked = call.fields, call.cluster.groups, asked_offsets(call)
    group_id = fields["group_id"]
    if (forbidden := _forbidden_to_write(call)) is not None:
        return {"topics": refused(asked, forbidden)}
    if not call.may_group(AclOperation.READ, group_id):
        return {"topics": refused(asked, KafkaCode.GROUP_AUTHORIZATION_FAILED)}
    producer = fields["producer_id"], fields["producer_epoch"]
    places = places_in(asked)
    code = _offsets_trouble(call, places, producer) if places else KafkaCode.NONE
    if places and not code and not call.has_room():
        code = KafkaCode.INVALID_COMMIT_OFFSET_SIZE
    topics, taken = commits(call, asked, code)
    if taken and not groups.commit_later(groups.opened(group_id), taken, producer):
        topics, _ = commits(call, asked, KafkaCode.INVALID_PRODUCER_EPOCH)
    groups.forget_new(group_id)
    return {"topics": topics}


def _offsets_trouble(call: Call, places: Iterable[Place], producer: tuple[int, int]) -> int:
    fields = call.fields
    if (code := misplaced(call)) is not None:
        return code
    home = home_of(call.cluster.topics, OFFSETS, fields["group_id"])
    member = fields["generation_id"], fields["member_id"], fields["group_instance_id"]
    return _admitted_offsets(call, producer, (home.topic, home.index)) or commit_trouble(
        call, places, member, transactional=True
    )


def _admitted_offsets(call: Call, producer: tuple[int, int], home: Place) -> int:
    log = call.cluster.topics.internal(OFFSETS).partitions[home[1]].log
    if not log.begin_verification(*producer, -1, call.cluster.now_ms()):
        return KafkaCode.NONE
    adds, abortable = call.version >= _IMPLICIT, call.version >= _KNOWS_ABORTABLE
    return admitted(call, call.fields["transactional_id"], producer, (home,), adds=adds, abortable=abortable)


# -- ends


def end_txn(call: Call) -> Fields:
    """Answer EndTxn."""
    fields = call.fields
    name = fields["transactional_id"]
    if (forbidden := _forbidden_to_write(call)) is not None:
        return {"error_code": forbidden}
    if name and (code := elsewhere(call, TRANSACTIONS, name)) is not None:
        return {"error_code": code}
    command = EndTransaction(
        transactional_id=name,
        producer_id=fields["producer_id"],
        epoch=fields["producer_epoch"],
        commit=fields["committed"],
        client_version=EPOCH_PER_TRANSACTION if call.version >= _IMPLICIT else 0,
    )
    reply = call.cluster.transactions.do(command)
    if reply.error:
        return {"error_code": _told(call, "EndTxn", reply.error)}
    if call.version < _IMPLICIT:
        return {"error_code": KafkaCode.NONE}
    return {"error_code": KafkaCode.NONE, "producer_id": reply.producer_id, "producer_epoch": reply.epoch}


def write_txn_markers(call: Call) -> Fields:
    """Answer WriteTxnMarkers."""
    may = call.may_cluster(AclOperation.ALTER) or call.may_cluster(AclOperation.CLUSTER_ACTION)
    markers = []
    for told in call.fields["markers"]:
        topics = [
            {
                "name": topic["name"],
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": _marked(call, told, (topic["name"], index))
                        if may
                        else KafkaCode.CLUSTER_AUTHORIZATION_FAILED,
                    }
                    for index in topic["partition_indexes"]
                ],
            }
            for topic in told["topics"]
        ]
        markers.append({"producer_id": told["producer_id"], "topics": topics})
    return {"markers": markers}


def _marked(call: Call, told: Fields, place: Place) -> int:
    partition = call.cluster.topics.partition(*place)
    if partition is None:
        return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.leader != call.node_id:
        return KafkaCode.NOT_LEADER_OR_FOLLOWER
    verdict = partition.log.end(
        told["producer_id"],
        told["producer_epoch"],
        commit=told["transaction_result"],
        coordinator_epoch=told["coordinator_epoch"],
        leader_epoch=partition.leader_epoch,
        now_ms=call.cluster.now_ms(),
    )
    partition.log.replicated(partition.log.end_offset)
    if verdict.outcome is AppendOutcome.ACCEPTED and partition.topic == OFFSETS:
        groups = call.cluster.groups
        groups.decided(partition.index, told["producer_id"], commit=told["transaction_result"])
    return verdict.error
