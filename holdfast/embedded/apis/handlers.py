"""The function that answers each api, and the versions of it that are offered."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from holdfast.embedded.apis import coordinators, describing
from holdfast.embedded.apis.call import Call, Fields, Handler
from holdfast.embedded.apis.groups import group_admin, group_members, group_offsets, modern_groups
from holdfast.embedded.apis.records import fetching, positions, producing
from holdfast.embedded.apis.security import acl_admin, authenticating, scram_admin
from holdfast.embedded.apis.topics import configuring, partition_pages, replicas, topic_admin
from holdfast.embedded.apis.transactions import producer_admin, transacting
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.protocol.table import apis

API_VERSIONS = "ApiVersions"
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
"""The allowed names of a client's software and version."""


def api_versions(call: Call) -> Fields:
    """Answer ApiVersions."""
    flexible = call.version >= 3
    said = call.fields["client_software_name"], call.fields["client_software_version"]
    if flexible and not all(map(_SOFTWARE.fullmatch, said)):
        return {"error_code": KafkaCode.INVALID_REQUEST}
    keys = [
        {"api_key": key, "min_version": versions[0], "max_version": versions[-1]}
        for key, _, versions in offered()
    ]
    return {
        "error_code": KafkaCode.NONE,
        "api_keys": keys,
        **(describing.features(call.version) if flexible else {}),
    }


def unknown_version() -> Fields:
    """Return the answer, in version 0, to a request in an unknown version of ApiVersions."""
    keys = [
        {"api_key": key, "min_version": versions[0], "max_version": versions[-1]}
        for key, name, versions in offered()
        if name == API_VERSIONS
    ]
    return {"error_code": KafkaCode.UNSUPPORTED_VERSION, "api_keys": keys}


HANDLERS: Mapping[str, Handler] = {
    "Produce": producing.produce,
    "Fetch": fetching.fetch,
    "ListOffsets": positions.list_offsets,
    "Metadata": describing.metadata,
    API_VERSIONS: api_versions,
    "CreateTopics": topic_admin.create_topics,
    "DeleteTopics": topic_admin.delete_topics,
    "DeleteRecords": positions.delete_records,
    "OffsetForLeaderEpoch": positions.offset_for_leader_epoch,
    "ListConfigResources": configuring.list_config_resources,
    "DescribeConfigs": configuring.describe_configs,
    "AlterConfigs": configuring.alter_configs,
    "CreatePartitions": topic_admin.create_partitions,
    "IncrementalAlterConfigs": configuring.incremental_alter_configs,
    "ElectLeaders": replicas.elect_leaders,
    "ListPartitionReassignments": replicas.list_partition_reassignments,
    "DescribeLogDirs": replicas.describe_log_dirs,
    "DescribeCluster": describing.describe_cluster,
    "DescribeTopicPartitions": partition_pages.describe_topic_partitions,
    "SaslHandshake": authenticating.sasl_handshake,
    "SaslAuthenticate": authenticating.sasl_authenticate,
    "DescribeAcls": acl_admin.describe_acls,
    "CreateAcls": acl_admin.create_acls,
    "DeleteAcls": acl_admin.delete_acls,
    "DescribeUserScramCredentials": scram_admin.describe_user_scram_credentials,
    "AlterUserScramCredentials": scram_admin.alter_user_scram_credentials,
    "FindCoordinator": coordinators.find_coordinator,
    "JoinGroup": group_members.join_group,
    "SyncGroup": group_members.sync_group,
    "Heartbeat": group_members.heartbeat,
    "LeaveGroup": group_members.leave_group,
    "OffsetCommit": group_offsets.offset_commit,
    "OffsetFetch": group_offsets.offset_fetch,
    "OffsetDelete": group_offsets.offset_delete,
    "DescribeGroups": group_admin.describe_groups,
    "ListGroups": group_admin.list_groups,
    "DeleteGroups": group_admin.delete_groups,
    "ConsumerGroupHeartbeat": modern_groups.consumer_group_heartbeat,
    "ConsumerGroupDescribe": modern_groups.consumer_group_describe,
    "InitProducerId": transacting.init_producer_id,
    "AddPartitionsToTxn": transacting.add_partitions_to_txn,
    "AddOffsetsToTxn": transacting.add_offsets_to_txn,
    "TxnOffsetCommit": transacting.txn_offset_commit,
    "EndTxn": transacting.end_txn,
    "WriteTxnMarkers": transacting.write_txn_markers,
    "DescribeProducers": producer_admin.describe_producers,
    "DescribeTransactions": producer_admin.describe_transactions,
    "ListTransactions": producer_admin.list_transactions,
}
UNSTABLE = {"InitProducerId": 6}
"""The version from which on Kafka treats an api as unfinished, and offers it to no client."""
FROM_ZERO = "Produce"
"""Kafka says that it knows this one from version 0 on, for clients that look no further (KAFKA-18659)."""


@cache
def offered() -> tuple[tuple[int, str, range], ...]:
    """Return key, name and versions of every api that is answered, as ApiVersions lists them."""
    found = []
    for key, name, versions in apis():
        if name in HANDLERS:
            first = 0 if name == FROM_ZERO else versions[0]
            found.append((key, name, range(first, UNSTABLE.get(name, versions[-1] + 1))))
    return tuple(found)
