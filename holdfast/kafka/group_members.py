"""Describes a consumer group's members in words, for a client that the group refuses because of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import TimeoutError as LateError
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from holdfast.kafka.codes import code_of
from holdfast.kafka.coordinator_admin import NEVER_S, CoordinatorAdmin
from holdfast.kafka.librdkafka_log import Quiet

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
LIMIT_SHOWN = 5


def may_join(config: Mapping[str, Any], group: str, timeout_s: float = ANSWER_S) -> bool:
    """Return False if this principal may not use *group*; True also if no broker answers in time."""
    try:
        _described(config, group, timeout_s)
    except (KafkaException, LateError) as error:
        return code_of(error) != KafkaError.GROUP_AUTHORIZATION_FAILED
    return True


def others_in(config: Mapping[str, Any], group: str, kind: str, timeout_s: float = ANSWER_S) -> str:
    """Return the message for a *kind* of member that *group* refuses with error 23
    (InconsistentGroupProtocol): members of another kind are in it, listed if the broker describes them.
    """
    try:
        found = _described(config, group, timeout_s)
        shown = [_member(each, found.partition_assignor) for each in found.members[:LIMIT_SHOWN]]
        more = len(found.members) - len(shown)
        who = ", ".join(shown) + (f" and {more} more" if more > 0 else "") if shown else "none by now"
    except (KafkaException, LateError) as error:
        who = f"the broker does not tell which ({_words(error)})"
    return (
        f"group {group} has members of another kind than this {kind}: {who}. Give each program a group of its"
        " own: a worker's group is its application's name (setting app), a harvester's is --group, else"
        " <outbox>.harvesters (of 0.1.0 the outbox's name)"
    )


def _described(config: Mapping[str, Any], group: str, timeout_s: float) -> Any:
    admin = CoordinatorAdmin(dict(config), Quiet(logger))
    try:
        answers = admin.ask(
            lambda client, asked: client.describe_consumer_groups(asked, request_timeout=NEVER_S),
            [group],
            timeout_s,
        )
    finally:
        admin.close()
    if isinstance(answer := answers[group], Exception):
        raise answer
    return answer


def _member(found: Any, assignor: str) -> str:
    topics = sorted({place.topic for place in found.assignment.topic_partitions}) if found.assignment else []
    of = f", reads {', '.join(topics[:LIMIT_SHOWN])}" if topics else ""
    by = f", assignor {assignor}" if assignor else ""
    return f"client {found.client_id} at {found.host}{by}{of}"


def _words(error: BaseException) -> str:
    why = error.args[0] if error.args else error
    return why.str() if isinstance(why, KafkaError) else (str(why) or "no answer in time")
