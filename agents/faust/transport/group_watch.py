"""Passes the group's answers to aiokafka's coordinator on to the manager: whether the worker is still an
owner, and when it has to end.

Wraps private names of aiokafka 0.14.0, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka.errors import GroupAuthorizationFailedError, InconsistentGroupProtocolError
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from aiokafka.protocol.types import Int16, Int32, Schema, String
from confluent_kafka import KafkaError

from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.partitions.membership import Membership
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError, InstanceFencedError
from holdfast.kafka.codes import NOT_A_MEMBER
from holdfast.kafka.group_members import others_in

logger = logging.getLogger(__name__)

LOOK_S = 0.1
TAKEN_S = 1.0
"""The length of aiokafka's attempt to join again where it must not: the worker is ending."""


class _HeartbeatResponse(Response):  # type: ignore[misc]
    API_KEY = 12
    API_VERSION = 3
    SCHEMA = Schema(("throttle_time_ms", Int32), ("error_code", Int16))


class _HeartbeatStruct(RequestStruct):  # type: ignore[misc]
    API_KEY = 12
    API_VERSION = 3
    RESPONSE_TYPE = _HeartbeatResponse
    SCHEMA = Schema(
        ("group", String("utf-8")),
        ("generation_id", Int32),
        ("member_id", String("utf-8")),
        ("group_instance_id", String("utf-8")),
    )


class StaticHeartbeat(Request[_HeartbeatStruct]):  # type: ignore[misc]
    """The heartbeat of a static member. aiokafka's does not name the instance, so that the broker cannot say
    that another process has taken its membership: to it the member is unknown, as after a session that ran
    out.
    """

    API_KEY = 12

    def __init__(self, group: str, generation_id: int, member_id: str, instance: str) -> None:
        self._values = group, generation_id, member_id, instance

    def build(self, request_struct_class: type[_HeartbeatStruct]) -> _HeartbeatStruct:
        return request_struct_class(*self._values)


class _StaticPlace:
    """A static membership of a group, as the group's answers show it. *settled* is that of the last
    generation that the member was in.
    """

    def __init__(self, coordinator: Any, plain_send: Any) -> None:
        self._coordinator, self._plain_send = coordinator, plain_send
        self._settled: StaticHeartbeat | None = None
        self.fenced = False

    @property
    def is_static(self) -> bool:
        return self._coordinator._group_instance_id is not None

    def heartbeat(self) -> StaticHeartbeat:
        """Return the heartbeat that names the instance."""
        found = self._coordinator
        return StaticHeartbeat(found.group_id, found.generation, found.member_id, found._group_instance_id)

    def settle(self) -> None:
        """Keep what the member is known by now: aiokafka forgets it with the first refusal."""
        if self._coordinator.member_id and self._coordinator.generation >= 0:
            self._settled = self.heartbeat()

    async def is_taken(self) -> bool:
        """Ask whether another process has taken the membership, before a member that was refused joins again:
        it would take it back, and the other would do the same.
        """
        if self.is_static and not self.fenced and self._settled is not None:
            answer = await self._plain_send(self._settled)
            self.fenced = answer.error_code == KafkaError.FENCED_INSTANCE_ID
        return self.fenced


def watch_group(coordinator: Any, manager: PartitionManager) -> None:
    """Pass what the group answers to *coordinator* on to *manager*, and its end.

    Called in the coordinator's thread, before it joins.
    """
    plain_send, plain_push = coordinator._send_req, coordinator._push_error_to_user
    place = _StaticPlace(coordinator, plain_send)

    def note(request: Any, answer: Any, sent_s: float, term: int) -> None:
        _note(manager.membership, request, answer, sent_s, term)
        codes = _codes(request, answer)
        if place.is_static and codes == {KafkaError.NO_ERROR}:
            place.settle()
        if KafkaError.FENCED_INSTANCE_ID in codes and place.is_static:
            place.fenced = True
            _leave_place(manager)

    async def send(request: Any) -> Any:
        # Before the request is on its way: the broker's clock begins no earlier.
        sent_s, term = system_clock.monotonic_s(), manager.membership.term
        if not isinstance(request, JoinGroupRequest):
            is_named = isinstance(request, HeartbeatRequest) and place.is_static
            answer = await plain_send(place.heartbeat() if is_named else request)
            note(request, answer, sent_s, term)
            return answer
        if place.is_static and not coordinator.member_id and await place.is_taken():
            _leave_place(manager)
            await asyncio.sleep(TAKEN_S)
            raise AioKafkaError("another worker has this member's place")
        manager.membership.joining()
        looking = asyncio.ensure_future(_look(manager.membership))
        try:
            answer = await plain_send(request)
            note(request, answer, sent_s, term)
            return answer
        finally:
            looking.cancel()
            manager.membership.answered()

    def push(error: BaseException) -> Any:
        # aiokafka waits until its user fetches and takes the error. Nothing is fetched through this consumer,
        # so it would wait for ever.
        if not coordinator._closing.done() and not place.fenced:
            _end(manager, error)
        return plain_push(error)

    def ended(routine: asyncio.Task[None]) -> None:
        if not coordinator._closing.done() and not routine.cancelled() and not place.fenced:
            _end(manager, routine.exception())

    coordinator._send_req, coordinator._push_error_to_user = send, push
    coordinator._coordination_task.add_done_callback(ended)


async def _look(membership: Membership) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        membership.looked()


def _leave_place(manager: PartitionManager) -> None:
    settings = manager.settings
    manager.crash_soon(
        InstanceFencedError(
            f"another worker has joined group {settings.app} with this one's instance_id,"
            f" {settings.instance_id}, and has its place there; this one ends. Give each worker an"
            " instance_id of its own, or leave it unset"
        )
    )


def _end(manager: PartitionManager, error: BaseException | None) -> None:
    manager.crash_soon(
        HoldfastError(
            "this worker cannot take part in its group any more, aiokafka's coordinator has failed:"
            f" {error}{_cure(manager, error)}"
        )
    )


def _cure(manager: PartitionManager, error: BaseException | None) -> str:
    if isinstance(error, InconsistentGroupProtocolError):
        settings = manager.settings
        return f": {others_in(settings.client(), settings.app, 'worker')}"
    if isinstance(error, GroupAuthorizationFailedError):
        return "; `holdfast acls` shows what a worker needs"
    if "UnknownError" in str(error):  # all that a broker says when it cannot write its record of the group
        return (
            "; the broker's log tells more: a large group may exceed max.message.bytes of __consumer_offsets,"
            " raise that (`holdfast size` estimates what is needed)"
        )
    return ""


def _note(membership: Membership, request: Any, answer: Any, sent_s: float, term: int) -> None:
    codes = _codes(request, answer)
    if codes & NOT_A_MEMBER:
        if KafkaError.FENCED_INSTANCE_ID in codes:
            membership.refused(term)
            return
        if not membership.refused(term):
            return  # of an answer before this one
        logger.warning(
            "the group refused this member (%(request)s): it owns nothing any more and joins again",
            {"request": type(request).__name__},
        )
    elif isinstance(request, HeartbeatRequest) and codes <= {
        KafkaError.NO_ERROR,
        KafkaError.REBALANCE_IN_PROGRESS,
    }:
        membership.granted(sent_s, rebalancing=KafkaError.REBALANCE_IN_PROGRESS in codes)
    elif isinstance(request, JoinGroupRequest) and codes == {KafkaError.NO_ERROR}:
        membership.joined()
    elif isinstance(request, SyncGroupRequest) and codes == {KafkaError.NO_ERROR}:
        membership.synced(sent_s)


def _codes(request: Any, answer: Any) -> set[int]:
    if isinstance(request, HeartbeatRequest | JoinGroupRequest | SyncGroupRequest):
        return {answer.error_code}
    if isinstance(request, OffsetCommitRequest):
        return {code for _, partitions in answer.topics for _, code in partitions}
    return set()
