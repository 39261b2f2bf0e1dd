"""A transactional producer on the event loop, for one transactional id: fences, appends batches, ends
transactions.

aiokafka's client finds brokers, connects and authenticates; what a transaction is, is here. No thread is
woken for it, and brokers that know the second version of the protocol (KIP-890) are spoken to in it, which
librdkafka does not: a record that is late cannot get into a later transaction, and there is a request less to
a transaction.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.structs import TopicPartition
from confluent_kafka import KafkaError

from holdfast.clock import system_clock
from holdfast.core.kafka import transaction_requests as wire
from holdfast.core.kafka.sequences import advance
from holdfast.core.kafka.topic_partition import Place
from holdfast.core.kafka.transaction_requests import Appended, Identity
from holdfast.errors import BrokerError, FencedError
from holdfast.kafka.codes import ABORTABLE, COORDINATOR_MOVES, fences, name_of, refuses_record, retriable
from holdfast.kafka.loop_turn import LoopTurn
from holdfast.kafka.requests.raw_request import RawRequest
from holdfast.kafka.transactions.transactional_producer import AbortableError, UndeliverableError, Written

logger = logging.getLogger(__name__)

T = TypeVar("T")

Connect: TypeAlias = Callable[[], Any]
"""Makes a client of aiokafka's that is not yet connected."""

_UNFINISHED = {KafkaError.CONCURRENT_TRANSACTIONS}
"""The coordinator still ends the transaction before: it takes milliseconds."""
UNKNOWN_TOPIC_S = 5.0
"""The time for which brokers may call a topic unknown before it counts as missing. A topic just created, or
one of a broker just started, is not known at once. Time without any broker's answer does not count.
"""
BATCH_BYTES = 500_000
BATCH_RECORDS = 2_000
"""Records of one batch: so many small ones are packed in 1 to 2 ms."""
ROUND_BYTES = 4 << 20
"""The most bytes under way at a time, over all partitions that a transaction writes to."""
_QUICK_PAUSE_S, _PAUSE_S, _LONGEST_PAUSE_S = 0.001, 0.05, 0.5
_CLOSE_S = 5.0
_TRANSACTION_COORDINATOR = 1
_SECOND_VERSION = 2


class SentBatch(NamedTuple):
    """A record batch as it is sent, and how many records are in it."""

    data: bytes
    records: int


@dataclass(slots=True)
class _Lot:
    """A transaction's records for one partition, and how many of them are written."""

    records: Sequence[Written]
    at: int = 0

    def batch(self, builder: DefaultRecordBatchBuilder, now_ms: int) -> SentBatch:
        """Return the next batch; one record at least is in it, be it as large as it may."""
        append = builder.append
        number = 0
        for key, value, headers in self.records[self.at : self.at + BATCH_RECORDS]:
            if append(number, now_ms, key, value, headers) is None:
                break
            number += 1
        self.at += number
        return SentBatch(bytes(builder.build()), number)


def producers(
    connect: Connect, *, transaction_timeout_s: float, compression: int = 0
) -> Callable[[str], TransactionalClient]:
    """Return a function that makes the producer of a transactional id."""
    return lambda transactional_id: TransactionalClient(
        connect,
        transactional_id=transactional_id,
        transaction_timeout_s=transaction_timeout_s,
        compression=compression,
    )


class TransactionalClient:
    """A `TransactionalProducer` that speaks to the brokers itself."""

    def __init__(
        self, connect: Connect, *, transactional_id: str, transaction_timeout_s: float, compression: int = 0
    ) -> None:
        self.transactional_id, self._compression = transactional_id, compression
        self._timeout_ms = int(transaction_timeout_s * 1000)
        self._connect, self._client = connect, None
        self._coordinator: int | None = None
        self._me = wire.NOBODY
        self._sequences: dict[Place, int] = {}
        self._joined: set[Place] = set()
        self._second_version = self._begun = self._asked_again = False
        self.why: object = None

    _client: Any

    # -- ownership

    async def fence(self) -> None:
        pauses = Pauses()
        while self._client is None:
            client = self._connect()
            try:
                await client.bootstrap()
            except BaseException as error:
                await _close(client)
                if not isinstance(error, AioKafkaError | OSError | TimeoutError):
                    raise
                self.why = error
                await pauses.wait(quick=False)
            else:
                self._client = client
        request = RawRequest(wire.API_VERSIONS, wire.API_VERSIONS_VERSIONS, wire.api_versions(), tagged=False)
        _, version = await self._ask(request, lambda answer: (0, wire.transaction_version(answer)))
        self._second_version = version >= _SECOND_VERSION
        if code := await self._initialize(wire.NOBODY):
            raise BrokerError(
                f"cannot fence {self.transactional_id}: {name_of(code)}; check that this principal may use"
                " transactional ids"
            )

    async def _initialize(self, known: Identity) -> int:
        """Take a new identity, or with *known* the next epoch of that; return an error code."""
        body = wire.init_producer_id(self.transactional_id, self._timeout_ms, known)
        code, me = await self._ask(
            RawRequest(wire.INIT_PRODUCER_ID, wire.INIT_PRODUCER_ID_VERSIONS, body), wire.initialized
        )
        if not code:
            self._me = me
            self._sequences.clear()
        return code

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    # -- a transaction

    def _builder(self, place: Place) -> DefaultRecordBatchBuilder:
        """Return a builder for the next batch of a topic partition."""
        sequence = self._sequences.get(place, 0)
        return DefaultRecordBatchBuilder(
            2, self._compression, 1, self._me.producer_id, self._me.epoch, sequence, BATCH_BYTES
        )

    async def partitions(self, topic: str, *, more_than: int = 0) -> int:
        cluster, unknown = self._client.cluster, _TimeUnknown()
        is_told = bool(await self._client.add_topic(topic))
        while len(known := cluster.partitions_for_topic(topic) or ()) <= more_than:
            if topic in cluster.unauthorized_topics:
                raise UndeliverableError(topic, name_of(KafkaError.TOPIC_AUTHORIZATION_FAILED))
            if not is_told:
                unknown.forget()
                self.why = f"no broker tells of topic {topic}"
            elif unknown.is_missing():
                raise UndeliverableError(
                    topic, f"{name_of(KafkaError.UNKNOWN_TOPIC_OR_PART)}: {len(known)} partitions are known"
                )
            await asyncio.sleep(_PAUSE_S)
            is_told = bool(await self._client.force_metadata_update())
        return len(known)

    async def append(self, records: Mapping[Place, Sequence[Written]]) -> dict[Place, int]:
        left = {place: _Lot(each) for place, each in records.items()}
        now_ms, offsets, turn = system_clock.now_ms(), dict[Place, int](), LoopTurn()
        while left:
            batches: dict[Place, SentBatch] = {}
            size = 0
            for place, lot in left.items():
                batches[place] = batch = lot.batch(self._builder(place), now_ms)
                size += len(batch.data)
                if size >= ROUND_BYTES:
                    break
                await turn.let_others()
            for place, offset in (await self._append_batches(batches)).items():
                offsets[place] = offset + batches[place].records
            left = {place: lot for place, lot in left.items() if lot.at < len(lot.records)}
        return offsets

    async def _append_batches(self, batches: Mapping[Place, SentBatch]) -> dict[Place, int]:
        """Append a batch to each topic partition, as part of the transaction; return the offset of each one's
        first record.

        A batch without an answer is sent again unchanged: the leader recognises it by its sequence.
        """
        self._begun = True
        if not self._second_version:
            await self._join(batches.keys() - self._joined)
        left, offsets = dict(batches), dict[Place, int]()
        pauses, unknown = Pauses(), _TimeUnknown()
        while True:
            codes = set()
            for place, code, offset in await self._append_once(left):
                if code == 0:
                    offsets[place] = offset
                    self._sequences[place] = advance(self._sequences.get(place, 0), left.pop(place).records)
                elif retriable(code) or (
                    code == KafkaError.UNKNOWN_TOPIC_OR_PART and not unknown.is_missing()
                ):
                    codes.add(code)
                else:
                    self._refuse(code, place[0])
            if not left:
                return offsets
            if KafkaError.UNKNOWN_TOPIC_OR_PART not in codes:
                unknown.forget()
            self.why = ", ".join(map(name_of, codes))
            await pauses.wait(quick=codes == _UNFINISHED)
            if codes != _UNFINISHED and not await self._client.force_metadata_update():
                unknown.forget()  # the known topics are those of before

    async def _append_once(self, batches: Mapping[Place, SentBatch]) -> list[Appended]:
        by_leader: dict[int, dict[Place, bytes]] = {}
        out: list[Appended] = []
        for place, batch in batches.items():
            leader = self._client.cluster.leader_for_partition(TopicPartition(*place))
            if leader is None or leader < 0:
                # Brokers no longer report a topic that was deleted since the batch was made.
                is_known = self._client.cluster.partitions_for_topic(place[0]) is not None
                code = KafkaError.LEADER_NOT_AVAILABLE if is_known else KafkaError.UNKNOWN_TOPIC_OR_PART
                out.append(Appended(place, code, -1))
            else:
                by_leader.setdefault(leader, {})[place] = batch.data
        sending = [self._append_to(leader, theirs) for leader, theirs in by_leader.items()]
        for found in (
            [await sending[0]] if len(sending) == 1 else await asyncio.gather(*sending)
        ):  # a task costs more than it does here
            out += found
        return out

    async def _append_to(self, leader: int, batches: Mapping[Place, bytes]) -> list[Appended]:
        versions = wire.PRODUCE_VERSIONS_2 if self._second_version else wire.PRODUCE_VERSIONS
        request = RawRequest(
            wire.PRODUCE, versions, wire.produce(self.transactional_id, self._timeout_ms, batches)
        )
        try:
            return wire.produced(await self._client.send(leader, request))
        except IncompatibleBrokerVersion as error:
            raise _too_old(error) from error
        except AioKafkaError as error:
            logger.info(
                "%(producer)s: broker %(broker)d did not answer: %(error)r",
                {"producer": self.transactional_id, "broker": leader, "error": error},
            )
            return [Appended(place, KafkaError.NETWORK_EXCEPTION, -1) for place in batches]

    async def _join(self, places: Iterable[Place]) -> None:
        if not (places := list(places)):
            return
        request = RawRequest(
            wire.ADD_PARTITIONS,
            wire.ADD_PARTITIONS_VERSIONS,
            wire.add_partitions(self.transactional_id, self._me, places),
        )
        pauses, unknown = Pauses(), _TimeUnknown()
        while True:
            code, topic = await self._ask(request, _first_refused)
            if not code:
                self._joined.update(places)
                return
            if code != KafkaError.UNKNOWN_TOPIC_OR_PART or unknown.is_missing():
                self._refuse(code, topic)
            await pauses.wait(quick=False)

    async def end(self, *, commit: bool) -> None:
        if not self._begun:
            return
        versions = wire.END_VERSIONS_2 if self._second_version else wire.END_VERSIONS
        request = RawRequest(
            wire.END_TRANSACTION,
            versions,
            wire.end_transaction(self.transactional_id, self._me, commit=commit),
        )
        code, me = await self._ask(request, lambda answer: wire.ended(answer, request.version))
        nothing_joined = code == KafkaError.INVALID_TXN_STATE and not commit and not self._second_version
        if code and not nothing_joined:
            self._refuse(code)
        if me is not None:
            self._me = me
            self._sequences.clear()
        elif (not commit or self._asked_again) and (code := await self._initialize(self._me)):
            # The first version cannot recognise late requests: none of this transaction that is still under
            # way may meet the next.
            self._refuse(code)
        self._joined.clear()
        self._begun = False

    # -- asking the coordinator

    async def _ask(self, request: RawRequest, read: Callable[[bytes], tuple[int, T]]) -> tuple[int, T]:
        """Return the coordinator's answer, an error code (0 for success) and a value, once it is available
        and not busy.
        """
        pauses, self._asked_again = Pauses(), False
        while True:
            try:
                if self._coordinator is None:
                    self._coordinator = await self._client.coordinator_lookup(
                        _TRANSACTION_COORDINATOR, self.transactional_id
                    )
                code, found = read(await self._client.send(self._coordinator, request))
            except IncompatibleBrokerVersion as error:
                raise _too_old(error) from error
            except AioKafkaError as error:
                self._asked_again, self._coordinator, self.why = True, None, repr(error)
                await pauses.wait(quick=False)
                continue
            if code in COORDINATOR_MOVES:
                self._coordinator = None
            elif code != KafkaError.CONCURRENT_TRANSACTIONS:
                return code, found
            self.why = name_of(code)
            await pauses.wait(quick=code == KafkaError.CONCURRENT_TRANSACTIONS)

    def _refuse(self, code: int, topic: str | None = None) -> None:
        """Raise what an error code means."""
        why = name_of(code)
        if fences(code):
            raise FencedError(
                f"{self.transactional_id}: the broker refused this owner ({why}): there is a newer one, or a"
                " transaction took longer than transaction_timeout_s"
            )
        if code == KafkaError.UNKNOWN:
            # Seen from a broker that had just been frozen. It is open whether the transaction is committed,
            # until another owner fences it.
            raise FencedError(
                f"{self.transactional_id}: the broker failed ({why}) at this owner's transaction: only the"
                " next owner can tell what became of it"
            )
        if code in ABORTABLE:
            raise AbortableError(why)
        if topic is not None and refuses_record(code):
            raise UndeliverableError(topic, why)
        raise BrokerError(f"{self.transactional_id}: transaction failed: {why}")


class Pauses:
    """Waits between attempts, each twice as long as the one before: from a ms where *quick*, and from 50
    where a broker is to come back.
    """

    def __init__(self) -> None:
        self._next_s = _QUICK_PAUSE_S

    async def wait(self, *, quick: bool) -> None:
        wait_s = self._next_s if quick else max(_PAUSE_S, self._next_s)
        self._next_s = min(_LONGEST_PAUSE_S, 2 * wait_s)
        await asyncio.sleep(wait_s)


class _TimeUnknown:
    """For how long brokers have said that a topic is unknown, without a word from them between that says
    otherwise.
    """

    def __init__(self) -> None:
        self._since_s: float | None = None

    def is_missing(self) -> bool:
        """Note that a broker says so, and return whether that has lasted for UNKNOWN_TOPIC_S."""
        now_s = system_clock.monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= UNKNOWN_TOPIC_S

    def forget(self) -> None:
        """Start over: forget which topics were unknown and since when."""
        self._since_s = None


async def _close(client: Any) -> None:
    """Close a client's connections; one whose other end does not say good-bye is dropped."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_CLOSE_S):
            await client.close()


def _first_refused(answer: bytes) -> tuple[int, str | None]:
    """Return the first error of an AddPartitionsToTxn answer that is not only for another's sake, and its
    topic; 0 for none.
    """
    codes = sorted(
        ((code, place[0]) for place, code in wire.added(answer) if code),
        key=lambda each: each[0] == KafkaError.OPERATION_NOT_ATTEMPTED,
    )
    return codes[0] if codes else (0, None)


def _too_old(error: Exception) -> BrokerError:
    return BrokerError(
        "the broker is too old for transactions as holdfast writes them; this needs Kafka 2.8 or newer:"
        f" {error}"
    )
