"""Passes the group's answers to aiokafka's coordinator on to the manager: whether the worker is still an
owner, and when it has to end.

Wraps private names of aiokafka 0.14.0, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiokafka.errors import GroupAuthorizationFailedError
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest
from confluent_kafka import KafkaError

from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.partitions.membership import Membership
from holdfast.clock import system_clock
from holdfast.errors import HoldfastError
from holdfast.kafka.codes import NOT_A_MEMBER

logger = logging.getLogger(__name__)

LOOK_S = 0.1


def watch_group(coordinator: Any, manager: PartitionManager) -> None:
    """Pass what the group answers to *coordinator* on to *manager*, and its end.

    Called in the coordinator's thread, before it joins.
    """
    plain_send, plain_push = coordinator._send_req, coordinator._push_error_to_user

    async def send(request: Any) -> Any:
        # Before the request is on its way: the broker's clock begins no earlier.
        sent_s, term = system_clock.monotonic_s(), manager.membership.term
        if not isinstance(request, JoinGroupRequest):
            answer = await plain_send(request)
            _note(manager.membership, request, answer, sent_s, term)
            return answer
        manager.membership.joining()
        looking = asyncio.ensure_future(_look(manager.membership))
        try:
            answer = await plain_send(request)
            _note(manager.membership, request, answer, sent_s, term)
            return answer
        finally:
            looking.cancel()
            manager.membership.answered()

    def push(error: BaseException) -> Any:
        # aiokafka waits until its user fetches and takes the error. Nothing is fetched through this consumer,
        # so it would wait for ever.
        if not coordinator._closing.done():
            _end(manager, error)
        return plain_push(error)

    def ended(routine: asyncio.Task[None]) -> None:
        if not coordinator._closing.done() and not routine.cancelled():
            _end(manager, routine.exception())

    coordinator._send_req, coordinator._push_error_to_user = send, push
    coordinator._coordination_task.add_done_callback(ended)


async def _look(membership: Membership) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        membership.looked()


def _end(manager: PartitionManager, error: BaseException | None) -> None:
    manager.crash_soon(
        HoldfastError(
            "this worker cannot take part in its group any more, aiokafka's coordinator has failed:"
            f" {error}{_cure(error)}"
        )
    )


def _cure(error: BaseException | None) -> str:
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
        if not membership.refused(term):
            return  # of an answer before this one
        logger.warning(
            "the group refused this member (%(request)s): it owns nothing any more and joins anew",
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
