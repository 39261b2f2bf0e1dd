"""Fetch: batches out of logs, with sessions, isolation, and waiting for records to come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

from holdfast.embedded.apis.call import Call, Fields
from holdfast.embedded.fetch_sessions import (
    FINAL,
    FIRST,
    NO_SESSION,
    Fetched,
    FetchKey,
    FetchSession,
    SentBefore,
)
from holdfast.embedded.logs.partition_log import PartitionLog
from holdfast.embedded.protocol.codes import KafkaCode
from holdfast.embedded.security.acl_rules import AclOperation
from holdfast.embedded.topics.partition import EmbeddedPartition

FIRST_BY_ID = 13
READ_COMMITTED = 1
UNKNOWN = -1
_UNSEEN = (
    KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
    KafkaCode.UNKNOWN_TOPIC_ID,
    KafkaCode.TOPIC_AUTHORIZATION_FAILED,
)
"""Codes with which Kafka has not looked at the partition."""
_NOWHERE = {"epoch": UNKNOWN, "end_offset": UNKNOWN}


_Wanted: TypeAlias = "list[tuple[FetchKey, Fetched]]"


class FetchAnswer(NamedTuple):
    """The answer for one partition, and how many bytes of records it has."""

    key: FetchKey
    fields: Fields
    size: int
    is_error: bool
    sent: SentBefore


def fetch(call: Call) -> Fields | Awaitable[Fields]:
    """Answer Fetch: at once if there is enough or an error to report, else within the time that the client
    waits.
    """
    session = _session(call)
    if isinstance(session, KafkaCode):
        return {"error_code": session, "session_id": NO_SESSION, "responses": []}
    wanted = list((dict(_partitions(call, "topics")) if session is None else session.wanted).items())
    found = _look(call, wanted)
    if _is_enough(call, found) or not wanted or call.fields["max_wait_ms"] <= 0:
        return _answer(call, session, found)
    return _later(call, session, wanted)


def _session(call: Call) -> FetchSession | KafkaCode | None:
    """Return the session of a request, None for none."""
    fields, sessions = call.fields, call.cluster.sessions[call.node_id]
    session_id, epoch, by_id = fields["session_id"], fields["session_epoch"], call.version >= FIRST_BY_ID
    if epoch in (FINAL, FIRST):
        sessions.close(session_id)
        wanted = list(_partitions(call, "topics"))
        return sessions.open(wanted, by_id=by_id) if epoch == FIRST and wanted and call.version >= 7 else None
    session = sessions.use(session_id, epoch, by_id=by_id)
    if isinstance(session, FetchSession):
        sessions.change(session, _partitions(call, "topics"), _forgotten(call))
    return session


def _partitions(call: Call, name: str) -> Iterator[tuple[FetchKey, Fetched]]:
    for topic in call.fields[name]:
        key = topic["topic_id"] if call.version >= FIRST_BY_ID else topic["topic"]
        for each in topic["partitions"]:
            yield (key, each["partition"]), each


def _forgotten(call: Call) -> Iterator[FetchKey]:
    for topic in call.fields["forgotten_topics_data"]:
        key = topic["topic_id"] if call.version >= FIRST_BY_ID else topic["topic"]
        yield from ((key, each) for each in topic["partitions"])


# -- looking


def _look(call: Call, wanted: _Wanted) -> list[FetchAnswer]:
    left = min(call.fields["max_bytes"], call.cluster.settings.fetch_max_bytes)
    found = []
    has_records = False
    for key, each in wanted:
        one = _read(call, key, each, left, one_at_least=not has_records)
        has_records = has_records or one.size > 0
        left = max(0, left - one.size)
        found.append(one)
    return found


def _of(call: Call, key: FetchKey) -> EmbeddedPartition | None:
    topics, (name, index) = call.cluster.topics, key
    topic = topics.by_id(name) if isinstance(name, bytes) else topics.get(name)
    return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None


def _read(call: Call, key: FetchKey, wanted: Fetched, left: int, *, one_at_least: bool) -> FetchAnswer:
    partition = _of(call, key)
    name = key[0] if isinstance(key[0], str) else partition.topic if partition is not None else None
    if name is not None and not call.may_topic(AclOperation.READ, name):
        return _failed(key, KafkaCode.TOPIC_AUTHORIZATION_FAILED)
    if partition is None:
        known = not isinstance(key[0], bytes) or call.cluster.topics.by_id(key[0]) is not None
        return _failed(key, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if known else KafkaCode.UNKNOWN_TOPIC_ID)
    if (code := partition.trouble(call.node_id, wanted["current_leader_epoch"])) is not None:
        return _failed(key, code, partition if code is KafkaCode.NOT_LEADER_OR_FOLLOWER else None)
    log, offset = partition.log, wanted["fetch_offset"]
    high, stable = log.high_watermark, log.last_stable_offset
    sent = SentBefore(high, log.start_offset, stable)
    away = _diverged(partition, wanted) if wanted["last_fetched_epoch"] >= 0 else None
    if away == _NOWHERE:
        return _failed(key, KafkaCode.OFFSET_OUT_OF_RANGE)
    if away is not None:
        return FetchAnswer(key, {**_told(key, sent), "diverging_epoch": away}, 0, True, sent)
    if not log.start_offset <= offset <= log.end_offset:
        return _failed(key, KafkaCode.OFFSET_OUT_OF_RANGE)
    committed = call.fields["isolation_level"] == READ_COMMITTED
    limit_bytes = min(left, wanted["partition_max_bytes"])
    read = log.read(
        offset, stable if committed else high, limit_bytes, committed=committed, one_at_least=one_at_least
    )
    fields = _told(key, sent)
    fields["records"] = read.batches[0] if len(read.batches) == 1 else b"".join(read.batches)
    fields["aborted_transactions"] = (
        [{"producer_id": each.producer_id, "first_offset": each.first_offset} for each in read.aborted]
        if committed
        else None
    )
    return FetchAnswer(key, fields, read.size, False, sent)


def _told(key: FetchKey, sent: SentBefore) -> Fields:
    return {
        "partition_index": key[1],
        "error_code": KafkaCode.NONE,
        "high_watermark": sent.high_watermark,
        "last_stable_offset": sent.last_stable,
        "log_start_offset": sent.log_start,
        "records": b"",
    }


def _failed(key: FetchKey, code: KafkaCode, partition: EmbeddedPartition | None = None) -> FetchAnswer:
    sent = SentBefore(UNKNOWN, UNKNOWN, UNKNOWN)
    there = code not in _UNSEEN
    fields = {**_told(key, sent), "error_code": code, "aborted_transactions": None if there else []}
    if partition is not None:
        leader = {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}
        fields["current_leader"] = leader
    return FetchAnswer(key, fields, 0, True, sent)


def _diverged(partition: EmbeddedPartition, wanted: Fetched) -> Fields | None:
    """Return where the log of a reader that has seen *wanted*'s epoch parts from this one."""
    epoch, end = partition.log.epoch_end(wanted["last_fetched_epoch"])
    if epoch < wanted["last_fetched_epoch"] or end < wanted["fetch_offset"]:
        return {"epoch": epoch, "end_offset": end}
    return None


def _is_enough(call: Call, found: Iterable[FetchAnswer]) -> bool:
    size = 0
    for each in found:
        size += each.size
        if each.is_error:
            return True
    least: int = min(call.fields["min_bytes"], call.cluster.settings.fetch_max_bytes)
    return size >= least


# -- waiting


async def _later(call: Call, session: FetchSession | None, wanted: _Wanted) -> Fields:
    """Wait until there is enough. A write to one partition costs a look at that one alone."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    ends_s = loop.time() + call.fields["max_wait_ms"] / 1000
    told, changed = dict(wanted), set[FetchKey]()
    watches = [(log, _watch(key, changed, woken)) for key, log in _logs(call, wanted)]
    for log, watch in watches:
        log.wait(watch)
    now = {each.key: each for each in _look(call, wanted)}  # others had their turn since the first look
    try:
        while (left_s := ends_s - loop.time()) > 0 and not _is_enough(call, now.values()):
            try:
                await asyncio.wait_for(woken.wait(), left_s)
            except TimeoutError:
                break
            woken.clear()
            left = call.cluster.settings.fetch_max_bytes
            for key in changed:
                now[key] = _read(call, key, told[key], left, one_at_least=True)
            changed.clear()
        return _answer(call, session, _look(call, wanted))
    finally:
        for log, watch in watches:
            log.leave(watch)


def _logs(call: Call, wanted: _Wanted) -> Iterator[tuple[FetchKey, PartitionLog]]:
    for key, _ in wanted:
        if (partition := _of(call, key)) is not None:
            yield key, partition.log


def _watch(key: FetchKey, changed: set[FetchKey], woken: asyncio.Event) -> Callable[[], None]:
    """Return a callback by which a log reports that more of its partition may be read."""

    def told() -> None:
        changed.add(key)
        woken.set()

    return told


# -- answering


def _answer(call: Call, session: FetchSession | None, found: list[FetchAnswer]) -> Fields:
    incremental = session is not None and call.fields["session_epoch"] > FIRST
    if session is not None:
        found = [each for each in found if not incremental or _is_news(session, each)]
        for each in found:
            session.answered(each.key, each.sent, has_records=each.size > 0)
    topics: list[Fields] = []
    last: str | bytes | None = None
    for each in found:
        name = each.key[0]
        if name != last:
            named = {"topic_id": name} if isinstance(name, bytes) else {"topic": name}
            topics.append({**named, "partitions": []})
            last = name
        topics[-1]["partitions"].append(each.fields)
    return {
        "error_code": KafkaCode.NONE,
        "session_id": NO_SESSION if session is None else session.session_id,
        "responses": topics,
    }


def _is_news(session: FetchSession, found: FetchAnswer) -> bool:
    return found.size > 0 or found.is_error or session.sent.get(found.key) != found.sent
