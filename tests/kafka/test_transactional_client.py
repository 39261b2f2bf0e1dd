"""A transactional producer when brokers answer with errors, late, or not at all: the answers are scripted,
the protocol is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from io import BytesIO
from struct import Struct
from typing import Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError, RequestTimedOutError
from confluent_kafka import KafkaError

from holdfast.core.engine.declared.partitioners import by_key, murmur2
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import Position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.core.kafka import transaction_requests as wire
from holdfast.core.kafka.wire import put_compact
from holdfast.errors import BrokerError, FencedError, WireError
from holdfast.kafka.codes import refuses_record
from holdfast.kafka.requests.raw_request import RawRequest
from holdfast.kafka.transactions import transactional_client
from holdfast.kafka.transactions.transactional_client import TransactionalClient, _first_refused, producers
from holdfast.kafka.transactions.transactional_producer import AbortableError, UndeliverableError
from holdfast.tables import changelog
from holdfast.tables.changelog import (
    MOST_KEYS,
    SHORT_KEY_BYTES,
    ChangelogPart,
    ChangelogWriter,
    _key_partitions,
    _KeyPartitions,
)
from tests.kafka.scripted import (
    CONCURRENT,
    FENCED,
    LOADING,
    LOG,
    MOVED,
    NOT_LEADER,
    OUT,
    SEQUENCE,
    TOO_LARGE,
    Brokers,
    Fault,
)
from tests.support.clocks import TickingClock
from tests.support.patience import DEADLINE_S


@pytest.fixture(params=[1, 2])
def brokers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    monkeypatch.setattr(transactional_client, "_PAUSE_S", 0.001)
    monkeypatch.setattr(transactional_client, "UNKNOWN_TOPIC_S", 0.05)
    monkeypatch.setattr(changelog, "_BACKOFF_S", 0.001)
    return Brokers(request.param)


def changes(applied: int, *emits: Emit) -> Changes:
    return Changes(
        marker=Position((applied,), 1_000, 1),
        records=1,
        puts=[(b"\x02a", b"%d" % applied)],
        emits=list(emits),
    )


def part_of(changed: Changes) -> ChangelogPart:
    return ChangelogPart([*changed.puts, changed.closing()], changed.emits)


def written(brokers: Brokers, use: Callable[[ChangelogWriter], Awaitable[Any]]) -> None:
    async def run() -> None:
        writer = ChangelogWriter(
            producers(lambda: brokers, transaction_timeout_s=10)("me"), changelog="log", partition=0
        )
        try:
            await writer.fence(DEADLINE_S)
            brokers.asked.clear()
            await use(writer)
        finally:
            await writer.close()
        assert brokers.closed

    asyncio.run(run())


def twice(writer: ChangelogWriter) -> Awaitable[None]:
    async def write() -> None:
        for applied in (1, 2):
            assert (
                await writer.write(changes(applied), (), DEADLINE_S)
                == 100 * len(writer_of(writer).appended) + 2
            )

    return write()


def writer_of(writer: ChangelogWriter) -> Brokers:
    assert isinstance(writer._producer, TransactionalClient)
    found: Brokers = writer._producer._client
    return found


def test_a_transaction_is_two_requests_and_by_the_first_protocol_three(brokers: Brokers) -> None:
    written(brokers, twice)
    one = [(wire.ADD_PARTITIONS, 1), (wire.PRODUCE, 1), (wire.END_TRANSACTION, 1)][brokers.protocol - 1 :]
    assert brokers.asked == [*one, *one]
    assert [[record.key for record in batch.records] for _, batch in brokers.appended] == [
        [b"\x02a", APPLIED]
    ] * 2
    assert [batch.base_sequence for _, batch in brokers.appended] == (
        [0, 2] if brokers.protocol == 1 else [0, 0]
    )
    assert [batch.producer_epoch for _, batch in brokers.appended] == (
        [1, 1] if brokers.protocol == 1 else [1, 2]
    )


def test_each_leader_is_sent_its_own_records(brokers: Brokers) -> None:
    written(
        brokers, lambda writer: writer.write(changes(1, Emit("out", "k", b"v", partition=1)), (), DEADLINE_S)
    )
    assert sorted(node for key, node in brokers.asked if key == wire.PRODUCE) == [1, 2]
    assert sorted(place for place, _ in brokers.appended) == [LOG, OUT]
    assert brokers.count(wire.ADD_PARTITIONS) == 2 - brokers.protocol


@pytest.mark.parametrize(
    "fault", [KafkaConnectionError("gone"), RequestTimedOutError(), NOT_LEADER, CONCURRENT]
)
def test_what_a_leader_does_not_take_is_sent_again_as_it_was(brokers: Brokers, fault: Fault) -> None:
    brokers.faults[wire.PRODUCE] = [fault]
    brokers.moved[LOG] = 2
    written(brokers, twice)
    assert [record.value for _, batch in brokers.appended for record in batch.records][::2] == [b"1", b"2"]
    if not isinstance(fault, Exception):
        assert brokers.sent[0] == brokers.sent[1], (
            "the same sequence: a leader that has it already takes it once"
        )
    assert brokers.refreshed == (fault != CONCURRENT)
    assert [node for key, node in brokers.asked if key == wire.PRODUCE] == (
        [1, 1, 1] if fault == CONCURRENT else [1, 2, 2]
    )


@pytest.mark.parametrize("fault", [KafkaConnectionError("gone"), LOADING, MOVED, CONCURRENT])
@pytest.mark.parametrize("key", [wire.INIT_PRODUCER_ID, wire.ADD_PARTITIONS, wire.END_TRANSACTION])
def test_a_coordinator_is_asked_until_it_answers(brokers: Brokers, key: int, fault: Fault) -> None:
    brokers.faults[key] = [fault] if isinstance(fault, Exception) else [fault, fault]
    written(brokers, twice)
    assert (len(brokers.appended), brokers.ends) == (2, [True, True])


def test_after_an_end_that_was_not_answered_nothing_late_can_meet_the_next_transaction(
    brokers: Brokers,
) -> None:
    brokers.faults[wire.END_TRANSACTION] = [RequestTimedOutError()]
    written(brokers, twice)
    first, second = (batch.producer_epoch for _, batch in brokers.appended)
    assert second == first + 1, "an end of the older epoch that comes late is refused"
    assert [batch.base_sequence for _, batch in brokers.appended] == [0, 0]


def test_a_transaction_whose_sequence_is_lost_is_taken_back_and_repeated(brokers: Brokers) -> None:
    brokers.faults[wire.PRODUCE] = [SEQUENCE]
    written(brokers, twice)
    assert brokers.ends == [False, True, True]
    first = brokers.appended[0][1]
    assert (first.producer_epoch, first.base_sequence) == (2, 0)


@pytest.mark.parametrize("code", [47, 48, 49, FENCED])
@pytest.mark.parametrize("key", [wire.PRODUCE, wire.END_TRANSACTION])
def test_an_owner_whose_epoch_is_over_is_fenced(brokers: Brokers, key: int, code: int) -> None:
    refused_as_an_old_owner(brokers, key, code)


@pytest.mark.parametrize("code", [47, 48, 49, FENCED])
def test_an_owner_whose_epoch_is_over_is_fenced_when_a_partition_joins(code: int) -> None:
    refused_as_an_old_owner(Brokers(1), wire.ADD_PARTITIONS, code)


@pytest.mark.parametrize("key", [wire.PRODUCE, wire.END_TRANSACTION])
def test_an_owner_starts_over_where_the_broker_leaves_the_outcome_of_a_transaction_open(
    brokers: Brokers, key: int
) -> None:
    refused_as_an_old_owner(
        brokers, key, KafkaError.UNKNOWN, "the broker failed .* at this owner's transaction"
    )


def refused_as_an_old_owner(
    brokers: Brokers, key: int, code: int, why: str = "the broker refused this owner"
) -> None:
    brokers.faults[key] = [code]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(FencedError, match=f"me: {why}"):
            await writer.write(changes(1), (), DEADLINE_S)

    written(brokers, use)
    assert brokers.ends == []


def test_what_a_topic_refuses_is_taken_back_and_named(brokers: Brokers) -> None:
    brokers.faults[wire.PRODUCE] = [TOO_LARGE]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(
            UndeliverableError, match=r"topic log refused a record: MSG_SIZE_TOO_LARGE"
        ) as caught:
            await writer.write(changes(1), (), DEADLINE_S)
        assert caught.value.topic == "log"
        await writer.write(changes(2), (), DEADLINE_S)

    written(brokers, use)
    assert brokers.ends == [False, True]


@pytest.mark.parametrize("code", [code for code in range(4, 200) if refuses_record(code)])
def test_whatever_blames_the_record_names_its_topic(brokers: Brokers, code: int) -> None:
    brokers.faults[wire.PRODUCE] = [code]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(UndeliverableError, match="topic log refused a record"):
            await writer.write(changes(1), (), DEADLINE_S)

    written(brokers, use)


def test_a_request_that_was_wrong_is_blamed_on_no_record(brokers: Brokers) -> None:
    brokers.faults[wire.PRODUCE] = [KafkaError.INVALID_REQUEST]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(BrokerError, match="me: transaction failed: INVALID_REQUEST") as caught:
            await writer.write(changes(1), (), DEADLINE_S)
        assert not isinstance(caught.value, UndeliverableError)

    written(brokers, use)


@pytest.mark.parametrize("partitions", [1, 3, 7])
def test_a_key_goes_where_java_clients_and_queries_look_for_it(partitions: int) -> None:
    keys = [f"key-{number}" for number in range(200)]
    assert min(murmur2(key.encode()) for key in keys) < 0, "the sign is what implementations differ in"
    for _ in range(2):  # the second time from memory
        assert [_key_partitions(partitions)[key.encode()] for key in keys] == [
            by_key(key, partitions) for key in keys
        ]


def test_of_very_many_keys_some_are_forgotten() -> None:
    known = _KeyPartitions(5)
    for number in range(MOST_KEYS + 10):
        assert known[b"%d" % number] in range(5)
    known[b"long" * SHORT_KEY_BYTES]
    assert len(known) == MOST_KEYS // 2 + 10
    assert known[b"7"] == by_key("7", 5)


class GrowingTopic:
    """A producer to a topic that has two partitions when first asked for, and three then; it keeps the
    appended records.
    """

    transactional_id, why = "me", None

    def __init__(self) -> None:
        self.appended: dict[Any, Any] = {}

    async def partitions(self, topic: str, *, more_than: int = 0) -> int:
        return max(2, more_than + 1)

    async def append(self, records: Any) -> dict[Any, int]:
        self.appended = records
        return dict.fromkeys(records, 1)

    async def end(self, *, commit: bool) -> None: ...


def test_a_partition_beyond_those_known_is_asked_for() -> None:
    producer: Any = GrowingTopic()
    emits = [Emit("out", "k", b"1", partition=1), Emit("out", "k", b"2", partition=2), Emit("out", "k", b"3")]
    asyncio.run(ChangelogWriter(producer, changelog="log", partition=0).write(changes(0), emits, DEADLINE_S))
    del producer.appended["log", 0]
    found = {place: [value for _, value, _ in each] for place, each in producer.appended.items()}
    wanted: dict[Any, Any] = {("out", 1): [b"1"], ("out", 2): [b"2"]}
    wanted.setdefault(("out", by_key("k", 3)), []).append(b"3")
    assert found == wanted


def test_an_emit_beyond_a_topics_partitions_takes_the_transaction_back(brokers: Brokers) -> None:
    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(
            UndeliverableError,
            match=r"topic out refused a record: UNKNOWN_TOPIC_OR_PART.*: 2 partitions are known",
        ):
            await writer.write(
                changes(1, Emit("out", "k", partition=0), Emit("out", "k", partition=7)), (), DEADLINE_S
            )
        await writer.write(changes(2), (), DEADLINE_S)

    written(brokers, use)
    assert [batch.records[0].value for _, batch in brokers.appended] == [b"2"]


def test_a_topic_without_write_permission_is_reported(brokers: Brokers) -> None:
    brokers.cluster.unauthorized_topics.add("secret")

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(
            UndeliverableError, match="topic secret refused a record: TOPIC_AUTHORIZATION_FAILED"
        ):
            await writer.write(changes(1, Emit("secret", "k")), (), DEADLINE_S)

    written(brokers, use)


def test_a_partition_without_a_leader_is_waited_for(brokers: Brokers) -> None:
    brokers.leaders[LOG], brokers.moved[LOG] = -1, 2
    written(brokers, twice)
    assert brokers.refreshed == 1
    assert {node for key, node in brokers.asked if key == wire.PRODUCE} == {2}


def test_a_topic_that_the_coordinator_does_not_know_yet_may_join_later() -> None:
    brokers = Brokers(1)
    brokers.faults[wire.ADD_PARTITIONS] = [3, 3]
    written(brokers, twice)
    assert brokers.ends == [True, True]


def test_a_transaction_that_no_partition_may_join_is_taken_back_though_there_is_nothing_to_end() -> None:
    brokers = Brokers(1)
    brokers.faults[wire.ADD_PARTITIONS], brokers.faults[wire.END_TRANSACTION] = [29], [48]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(
            UndeliverableError, match="topic log refused a record: TOPIC_AUTHORIZATION_FAILED"
        ):
            await writer.write(changes(1), (), DEADLINE_S)
        await writer.write(changes(2), (), DEADLINE_S)

    written(brokers, use)
    assert [batch.producer_epoch for _, batch in brokers.appended] == [2]


def test_of_partitions_that_may_not_join_the_one_is_named_that_is_to_blame() -> None:
    out = bytearray(b"\x00\x00\x00\x00\x03")
    for topic, code in ((b"innocent", 55), (b"guilty", 29)):
        put_compact(out, topic)
        out += b"\x02" + Struct(">ih").pack(0, code) + b"\x00\x00"
    assert _first_refused(bytes(out + b"\x00")) == (29, "guilty")


def test_many_emits_with_long_keys_let_others_have_their_turn(brokers: Brokers) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def use(writer: ChangelogWriter) -> None:
        other = asyncio.ensure_future(others())
        await asyncio.sleep(0)
        began = turns
        await writer._append(part_of(changes(1, *(Emit("out", "k" * 5_000) for _ in range(300)))))
        assert turns - began > 20
        other.cancel()

    written(brokers, use)


def test_connections_that_do_not_close_are_dropped(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_client, "_CLOSE_S", 0.05)

    async def hang() -> None:
        brokers.closed = True
        await asyncio.sleep(60)

    brokers.close = hang  # type: ignore[method-assign]
    written(brokers, twice)


def test_a_tombstone_that_cannot_be_written_is_logged(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(writer: ChangelogWriter) -> None:
        await writer.disown(DEADLINE_S)
        brokers.faults[wire.PRODUCE] = [FENCED]
        await writer.disown(DEADLINE_S)

    written(brokers, use)
    assert [(batch.records[0].key, batch.records[0].value) for _, batch in brokers.appended] == [
        (APPLIED, None)
    ]
    assert "cannot disown log partition 0: me: the broker refused this owner" in caplog.text


@pytest.mark.parametrize("tags", [b"\x00", b"\x01\x05\x02ab"])
def test_what_a_header_has_that_is_not_known_is_passed_over(tags: bytes) -> None:
    buffer = BytesIO(b"\x00\x00\x00\x07" + tags + b"body")
    request = RawRequest(wire.PRODUCE, range(9, 12), b"")
    assert (request.parse_response_header(buffer).correlation_id, request.decode(buffer)) == (7, b"body")


def test_a_topic_that_stays_unknown_is_taken_for_missing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactional_client, "UNKNOWN_TOPIC_S", 5.0)
    monkeypatch.setattr(transactional_client, "system_clock", TickingClock(2))
    brokers.faults[wire.PRODUCE] = [3] * 1_000

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(UndeliverableError, match="topic log refused a record: UNKNOWN_TOPIC_OR_PART"):
            await writer.write(changes(1), (), DEADLINE_S)

    written(brokers, use)
    assert brokers.refreshed == 3


@pytest.mark.long
def test_a_topic_that_the_brokers_no_longer_list_is_taken_for_missing(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was deleted: a new request finds neither partitions nor leaders. It is not waited for as if it had
    none just now.
    """
    monkeypatch.setattr(transactional_client, "UNKNOWN_TOPIC_S", 5.0)
    monkeypatch.setattr(transactional_client, "system_clock", TickingClock(2))
    brokers.faults[wire.PRODUCE] = [3]

    async def asked() -> bool:
        brokers.refreshed += 1
        brokers.leaders.pop(LOG, None)
        return brokers.refreshed > 10  # until then no broker answers

    brokers.force_metadata_update = asked  # type: ignore[method-assign]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(UndeliverableError, match="topic log refused a record: UNKNOWN_TOPIC_OR_PART"):
            await writer.write(changes(1), (), DEADLINE_S)

    written(brokers, use)
    assert brokers.refreshed == 13


def test_a_topic_is_not_missing_while_no_broker_answers_about_it(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage that lasts for longer than a topic may be unknown begins with the first record for it."""
    monkeypatch.setattr(transactional_client, "UNKNOWN_TOPIC_S", 5.0)
    monkeypatch.setattr(transactional_client, "system_clock", TickingClock(2))

    async def asked(*_: object) -> bool:
        brokers.refreshed += 1
        if brokers.refreshed <= 20:
            return False
        if brokers.refreshed == 22:  # the first answer of a broker that has just started knows nothing yet
            brokers.leaders["new", 0] = 1
        return True

    brokers.add_topic = brokers.force_metadata_update = asked  # type: ignore[method-assign, assignment]

    async def use(writer: ChangelogWriter) -> None:
        await writer.write(changes(1, Emit("new", "k")), (), DEADLINE_S)

    written(brokers, use)
    assert brokers.refreshed == 22
    assert {place for place, _ in brokers.appended} == {LOG, ("new", 0)}


@pytest.mark.parametrize("key", [wire.PRODUCE, wire.END_TRANSACTION])
def test_any_other_error_is_named(brokers: Brokers, key: int) -> None:
    brokers.faults[key] = [53]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(
            BrokerError, match=r"me: transaction failed: TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
        ):
            await writer.write(changes(1), (), DEADLINE_S)

    written(brokers, use)


@pytest.mark.parametrize("key", [wire.PRODUCE, wire.END_TRANSACTION])
@pytest.mark.parametrize("fault", [LOADING, KafkaConnectionError("gone"), CONCURRENT])
def test_an_unsettled_call_ends_in_time_with_the_last_answer(
    brokers: Brokers, key: int, fault: Fault
) -> None:
    brokers.faults[key] = [fault] * 1_000

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(
            BrokerError,
            match=(
                r"me: transaction failed: not settled within 0.1 s:"
                r" .*(NETWORK_EXCEPTION|COORDINATOR_LOAD_IN_PROGRESS|CONCURRENT_TRANSACTIONS|gone)"
            ),
        ):
            await writer.write(changes(1), (), 0.1)

    written(brokers, use)


def test_a_broker_that_hangs_is_not_waited_for_longer_than_allowed(brokers: Brokers) -> None:
    async def use(writer: ChangelogWriter) -> None:
        brokers.force_metadata_update = brokers.send = lambda *_: asyncio.sleep(60)  # type: ignore[method-assign,assignment]
        with pytest.raises(BrokerError, match=r"not settled within 0.1 s"):
            await writer.write(changes(1), (), 0.1)

    written(brokers, use)


def test_a_broker_that_is_too_old_is_reported_as_such(brokers: Brokers) -> None:
    brokers.faults[wire.PRODUCE] = [IncompatibleBrokerVersion("API 0")]

    async def use(writer: ChangelogWriter) -> None:
        with pytest.raises(BrokerError, match=r"too old .* needs Kafka 2.8 or newer"):
            await writer.write(changes(1), (), DEADLINE_S)

    written(brokers, use)


def test_a_client_without_rights_on_the_id_is_refused_at_the_fence(brokers: Brokers) -> None:
    brokers.faults[wire.INIT_PRODUCER_ID] = [53]
    with pytest.raises(
        BrokerError,
        match=(
            r"cannot fence me: TRANSACTIONAL_ID_AUTHORIZATION_FAILED.*; check that this principal may use"
            r" transactional ids"
        ),
    ):
        written(brokers, twice)


def test_a_batch_that_was_made_twice_is_aborted_when_its_offset_is_not_known(brokers: Brokers) -> None:
    async def use(writer: ChangelogWriter) -> None:
        brokers.faults[wire.PRODUCE] = [46]
        with pytest.raises(AbortableError):
            await writer._append(part_of(changes(1)))

    written(brokers, use)


def test_a_version_is_chosen_that_both_know() -> None:
    request = RawRequest(wire.PRODUCE, range(9, 12), b"")
    assert request.prepare({wire.PRODUCE: (3, 10)}).version == 10
    assert request.prepare({wire.PRODUCE: (3, 99)}).version == 11
    for known in ({wire.PRODUCE: (3, 8)}, {wire.PRODUCE: (12, 13)}, {}):
        with pytest.raises(IncompatibleBrokerVersion):
            request.prepare(known)


ANSWERS: dict[str, tuple[Callable[[bytes], object], Callable[[Brokers], bytes]]] = {
    "features": (wire.transaction_version, lambda brokers: brokers.features(b"", 0)),
    "identity": (wire.initialized, lambda brokers: brokers.initialize(b"", 0)),
    "joined": (
        wire.added,
        lambda brokers: brokers.add(wire.add_partitions("me", wire.Identity(7, 0), [LOG, OUT]), 3),
    ),
    "ended": (lambda answer: wire.ended(answer, 5), lambda brokers: brokers.end(b"", 51)),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_breaks_off_is_an_error_wherever_it_does(name: str) -> None:
    read, make = ANSWERS[name]
    answer = make(Brokers(2))
    read(answer)
    for end in range(len(answer) - 1):
        with pytest.raises(WireError):
            read(answer[:end])
