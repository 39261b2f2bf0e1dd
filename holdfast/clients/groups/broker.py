"""Groups that the broker's own coordinator keeps: what `kafka-consumer-groups` shows.

What resets need is in `group_book`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, KafkaError, KafkaException

from holdfast.clients.groups.records import GroupDescription, GroupKind, MemberDescription
from holdfast.config import Settings
from holdfast.errors import BrokerError, GroupError
from holdfast.kafka.codes import NO_GROUP, code_of, retriable
from holdfast.kafka.coordinator_admin import NEVER_S, CoordinatorAdmin

logger = logging.getLogger(__name__)
T = TypeVar("T")

LIMIT_ASKED = 200
"""Groups asked about at once."""
_STATES = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
    # Consumer groups of the new protocol have states that the client library has no names for: they assign
    # and reconcile.
    ConsumerGroupState.UNKNOWN: "Reconciling",
}


class BrokerGroups:
    """The broker's groups. Each call waits for one answer, *timeout_s* at the longest."""

    def __init__(self, settings: Settings, *, timeout_s: float) -> None:
        self._servers, self._timeout_s = settings.bootstrap_servers, timeout_s
        config: dict[str, Any] = settings.client()
        self._admin = CoordinatorAdmin(config, logger)

    def states(self) -> dict[str, str]:
        """Return the state of every group."""
        listed = self._result(
            self._admin.client.list_consumer_groups(request_timeout=NEVER_S), "list of groups"
        )
        if listed.errors:
            raise self._refused("list of groups", listed.errors[0])
        return {each.group_id: _STATES[each.state] for each in listed.valid}

    def describe(self, group: str) -> tuple[GroupDescription, tuple[MemberDescription, ...]] | None:
        """Return a group with its members; None where the broker has none of that name."""
        return self.describe_all([group]).get(group)

    def describe_all(
        self, groups: Sequence[str]
    ) -> dict[str, tuple[GroupDescription, tuple[MemberDescription, ...]]]:
        """Return those of *groups* that the broker has, with their members."""
        found: dict[str, tuple[GroupDescription, tuple[MemberDescription, ...]]] = {}
        for start in range(0, len(groups), LIMIT_ASKED):
            asked = list(groups[start : start + LIMIT_ASKED])
            for group, future in self._admin.client.describe_consumer_groups(
                asked, request_timeout=NEVER_S
            ).items():
                try:
                    described = self._result(future, f"description of group {group}")
                except GroupError as error:
                    if code_of(error.__cause__) in NO_GROUP:
                        continue
                    raise
                if described.state is not ConsumerGroupState.DEAD:
                    found[group] = self._described(group, described)
        return found

    def _described(self, group: str, found: Any) -> tuple[GroupDescription, tuple[MemberDescription, ...]]:
        members = tuple(
            MemberDescription(
                group=group,
                consumer_id=each.member_id,
                host=each.host,
                client_id=each.client_id,
                assignment=tuple(
                    sorted((place.topic, place.partition) for place in each.assignment.topic_partitions)
                ),
            )
            for each in found.members
        )
        held = sum(len(member.assignment) for member in members)
        coordinator = found.coordinator
        return (
            GroupDescription(
                group=group,
                kind=GroupKind.CONSUMER,
                state=_STATES[found.state],
                members=len(members),
                partitions_held=held,
                partitions=held,
                coordinator=None
                if coordinator is None
                else f"{coordinator.host}:{coordinator.port} ({coordinator.id})",
                assignment_strategy=found.partition_assignor or None,
            ),
            tuple(sorted(members, key=lambda member: member.consumer_id)),
        )

    def require_stopped(self, app: str) -> None:
        """Raise GroupError while a worker of application *app* is in its group."""
        found = self.describe(app)
        if found is not None and found[0].members:
            raise GroupError(
                f"{found[0].members} workers of {app} run ({found[0].state}): stop all of them, then try again "
                "(one that was killed, or has an instance_id, is gone after session_timeout_s)"
            )

    def delete(self, group: str) -> None:
        """Delete a group that has no members, with all that it has committed; one that does not exist is no error."""
        asked = self._admin.client.delete_consumer_groups([group], request_timeout=NEVER_S)
        try:
            self._result(asked[group], f"deletion of group {group}")
        except GroupError as error:
            if code_of(error.__cause__) not in NO_GROUP:
                raise

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return all that the group has committed."""
        request = [ConsumerGroupTopicPartitions(group)]
        future = self._admin.client.list_consumer_group_offsets(request, request_timeout=NEVER_S)[group]
        try:
            found = self._result(future, f"offsets of group {group}")
        except GroupError as error:
            if code_of(error.__cause__) in NO_GROUP:
                return {}
            raise
        return {
            (place.topic, place.partition): place.offset
            for place in found.topic_partitions
            if place.offset >= 0
        }

    def _result(self, future: Future[T], what: str) -> Any:
        try:
            return self._admin.result(future, self._timeout_s)
        except FutureTimeoutError as error:
            raise BrokerError(
                f"{what}: no answer within {self._timeout_s:g} s from {self._servers}"
            ) from error
        except KafkaException as error:
            raise self._refused(what, error) from error

    def _refused(self, what: str, error: KafkaException) -> BrokerError | GroupError:
        cause: KafkaError = error.args[0]
        if retriable(cause.code()) or cause.retriable():
            return BrokerError(f"{what}: {cause.str()}; asked {self._servers}, check the broker")
        return GroupError(f"{what}: {cause.str()}")
