"""Groups that the broker's own coordinator keeps: what `kafka-consumer-groups` shows.

What resets need is in `group_book`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple, TypeAlias

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.clients.groups.records import GroupDescription, GroupKind, MemberDescription, ShownState
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError, GroupError
from holdfast.kafka.codes import NO_ANSWER, NO_GROUP, code_of, retriable
from holdfast.kafka.coordinator_admin import AGAIN_S, NEVER_S, CoordinatorAdmin
from holdfast.loop_thread import LoopThread

logger = logging.getLogger(__name__)

GroupWithMembers: TypeAlias = tuple[GroupDescription, tuple[MemberDescription, ...]]
_LISTING_SHARE = 0.9
"""Of the time: the client's own deadline comes first, and brings what the other brokers have answered."""
LIMIT_NAMED = 3
"""Groups that an error names where none of them was answered for."""
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


class ListedGroups(NamedTuple):
    """The state of each group; and which brokers listed none, empty where all have."""

    states: dict[str, str]
    unlisted: str


class BrokerGroups:
    """The broker's groups. Each call asks for at most *timeout_s*, again while coordinators move or load
    their log.
    """

    def __init__(self, settings: Settings, *, timeout_s: float, clock: Clock = system_clock) -> None:
        self._settings, self._timeout_s, self._clock = settings, timeout_s, clock
        self._servers = settings.bootstrap_servers
        config: dict[str, Any] = settings.client()
        self._admin = CoordinatorAdmin(config, logger, clock=clock)

    def states(self) -> ListedGroups:
        """Return the state of every group that the brokers list; BrokerError where none of them lists any."""
        what, until_s = "list of groups", self._clock.monotonic_s() + self._timeout_s
        refused: BrokerError | GroupError | None = None
        states = dict[str, str]()
        while True:
            left_s = max(0.0, until_s - self._clock.monotonic_s())
            try:
                listed = self._admin.result(
                    self._admin.client.list_consumer_groups(request_timeout=_LISTING_SHARE * left_s + 0.001),
                    left_s,
                )
            except FutureTimeoutError as error:
                raise refused or self._silent(what) from error
            except KafkaException as error:
                raise self._refused(what, error) from error
            states |= {each.group_id: _STATES[each.state] for each in listed.valid}
            if not listed.errors:
                return ListedGroups(states, "")
            # One of the brokers still loads the groups that it coordinates, or is silent: the list lacks
            # them.
            why: KafkaError = next((e for e in listed.errors if e.code() not in NO_ANSWER), listed.errors[0])
            is_over = self._clock.monotonic_s() + AGAIN_S >= until_s
            if why.code() not in NO_ANSWER:
                refused = self._refused(what, KafkaException(why))
                if is_over or not isinstance(refused, BrokerError):
                    raise refused
            elif is_over or why.code() == KafkaError._TIMED_OUT:
                told = refused or self._refused(what, KafkaException(why))
                return self._incomplete(states, len(listed.errors), told)
            time.sleep(AGAIN_S)

    def _incomplete(
        self, states: dict[str, str], brokers: int, refused: BrokerError | GroupError
    ) -> ListedGroups:
        # its connection to the silent broker counts as usable: the next question might take that one
        self._admin.close()
        if not states:
            raise refused
        return ListedGroups(
            states,
            f"{brokers} of the brokers did not list the groups that they coordinate: {refused}; more groups"
            " may be there",
        )

    def describe(self, group: str) -> GroupWithMembers | None:
        """Return a group with its members; None where the broker has none of that name."""
        return self.describe_all([group]).get(group)

    def describe_all(self, groups: Sequence[str]) -> dict[str, GroupWithMembers]:
        """Return those of *groups* that the broker has, with their members.

        Those of a silent coordinator are in state NO_ANSWER, and name it; BrokerError if no broker answers.
        """
        found: dict[str, GroupWithMembers] = {}
        answers, silent = self._asked(
            "description",
            groups,
            lambda admin, asked: admin.describe_consumer_groups(asked, request_timeout=NEVER_S),
        )
        for group, described in answers.items():
            if described.state is not ConsumerGroupState.DEAD:
                found[group] = self._described(group, described)
        for group, coordinator in silent.items():
            found[group] = (
                GroupDescription(
                    group=group,
                    kind=GroupKind.CONSUMER,
                    state=ShownState.NO_ANSWER,
                    members=0,
                    partitions_held=0,
                    partitions=0,
                    coordinator=coordinator,
                ),
                (),
            )
        return found

    def _described(self, group: str, found: Any) -> GroupWithMembers:
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
                coordinator=(
                    None
                    if coordinator is None
                    else f"{coordinator.host}:{coordinator.port} ({coordinator.id})"
                ),
                assignment_strategy=found.partition_assignor or None,
            ),
            tuple(sorted(members, key=lambda member: member.consumer_id)),
        )

    def require_stopped(self, app: str) -> None:
        """Raise GroupError while a worker of application *app* is in its group."""
        found = self.describe(app)
        if found is not None and found[0].members:
            raise GroupError(
                f"{found[0].members} workers of {app} run ({found[0].state}): stop all of them, then try"
                " again (one that was killed, or has an instance_id, is gone after session_timeout_s)"
            )

    def delete(self, group: str) -> None:
        """Delete a group that has no members, with all that it has committed; one that does not exist is no
        error.
        """
        self._asked(
            "deletion",
            [group],
            lambda admin, asked: admin.delete_consumer_groups(asked, request_timeout=NEVER_S),
        )

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return all that the group has committed."""
        # aiokafka takes a while to load, and most that ask for groups do not ask for this.
        from holdfast.kafka.requests.group_offsets import committed_offsets

        thread = LoopThread("holdfast-group-offsets")
        thread.start()
        try:
            asked = committed_offsets(self._settings, group, timeout_s=self._timeout_s, clock=self._clock)
            return thread.wait(asked, self._timeout_s)
        finally:
            thread.stop(asyncio.sleep(0))

    def _asked(
        self,
        what: str,
        groups: Sequence[str],
        question: Callable[[AdminClient, list[str]], Mapping[str, Future[Any]]],
    ) -> tuple[dict[str, Any], dict[str, str | None]]:
        """Return the coordinators' answers by group, without the groups that do not exist; and the silent
        coordinators by group. BrokerError if all are silent.
        """
        answers = self._admin.ask(question, groups, self._timeout_s)
        found: dict[str, Any] = {}
        silent: list[str] = []
        for group, answer in answers.items():
            if isinstance(answer, FutureTimeoutError):
                silent.append(group)
            elif not isinstance(answer, KafkaException):
                found[group] = answer
            elif code_of(answer) not in NO_GROUP:
                raise self._refused(f"{what} of group {group}", answer) from answer
        named = self._admin.coordinators(silent) if silent else {}
        if silent and len(silent) == len(answers):
            raise self._silent(f"{what} of group {', '.join(silent[:LIMIT_NAMED])}", named.get(silent[0]))
        return found, {group: named.get(group) for group in silent}

    def _silent(self, what: str, coordinator: str | None = None) -> BrokerError:
        who = self._servers if coordinator is None else f"the coordinator {coordinator}"
        return BrokerError(f"{what}: no answer within {self._timeout_s:g} s from {who}")

    def _refused(self, what: str, error: KafkaException) -> BrokerError | GroupError:
        cause: KafkaError = error.args[0]
        if cause.code() == KafkaError._TIMED_OUT:
            return self._silent(what)
        if retriable(cause.code()) or cause.retriable():
            return BrokerError(f"{what}: {cause.str()}; asked {self._servers}, check the broker")
        return GroupError(f"{what}: {cause.str()}")
