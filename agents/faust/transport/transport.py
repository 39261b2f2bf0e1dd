"""Faust's transport with our feed: group membership stays aiokafka's, records come from our own fetcher in
batches.

One Faust event is one fetch of one partition. Overrides private names of faust-streaming 0.15.3 and aiokafka
0.14.0, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2s
from typing import Any, cast

from aiokafka.errors import CommitFailedError
from aiokafka.structs import TopicPartition as AioTP
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage
from mode import Service

from holdfast.agents.faust.transport.conductor import BATCHES, SharingConductor, batches_of
from holdfast.agents.faust.transport.declared_topics import DeclaringProducer
from holdfast.agents.faust.transport.first_brokers import await_brokers
from holdfast.agents.faust.transport.group_watch import watch_group
from holdfast.agents.faust.transport.read_topics import ReadTopics
from holdfast.agents.partitions.manager import PartitionManager
from holdfast.clock import system_clock
from holdfast.core.engine.linger import FEW_RECORDS
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.fetching.source_fetcher import Fetched

logger = logging.getLogger(__name__)

WAIT_S = 0.1
LOOK_S = 2.0
"""The interval at which missing topics are looked for."""
LIMIT_INSTANCE = 240
_END = "\0"
"""Ends metadata that is committed: librdkafka's clients, which write it too, read up to it, and beyond the
text where it is missing.
"""


def static_member(instance: str, topics: Iterable[str]) -> str:
    """Return the group instance id of *instance* with this subscription.

    >>> static_member("w1", ["b", "a"]) == static_member("w1", ["a", "b"]) != static_member("w1", ["a"])
    True
    """
    return (
        f"{instance[:LIMIT_INSTANCE]}.{blake2s(','.join(sorted(topics)).encode(), digest_size=4).hexdigest()}"
    )


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what aiokafka says each time that it looks for a topic in vain: here it is said once, with
    what becomes of it.
    """
    return "not found in cluster metadata" not in str(record.msg)


logging.getLogger("aiokafka.cluster").addFilter(_is_news)


class GroupThread(driver.AIOKafkaConsumerThread):
    """aiokafka's consumer in its thread: joins, heartbeats, commits; it fetches nothing."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust's 1500 ms is hard-wired; one slow long poll holds up what little goes through this consumer.
        consumer._fetch_max_wait_ms = 100
        return consumer

    async def on_start(self) -> None:
        await super().on_start()
        coordinator = self._ensure_consumer()._coordinator
        await_brokers(coordinator)
        watch_group(coordinator, cast(Any, self.app).manager)

    async def subscribe(self, topics: Iterable[str]) -> None:
        topics = set(topics)
        self._name_static_member(self._ensure_consumer()._coordinator, topics)
        await super().subscribe(topics)

    def _name_static_member(self, coordinator: Any, topics: set[str]) -> None:
        """Have a static member's id contain its subscription, until it has joined.

        A static member that returns within its session gets back its old assignment without a rebalance, even
        when it subscribes to other topics now: those of a processor's new version, or of an agent just added,
        would have no reader.
        """
        instance = cast(Any, self.app).settings.instance_id
        if instance is not None and coordinator.generation < 0:
            coordinator._group_instance_id = static_member(instance, topics)

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Say nothing of what aiokafka has fetched: it fetches nothing, so stock would take each partition
        for stuck from 300 s on.

        Whether records in hand are folded and committed is the manager's watch to see, which ends a worker
        that is stuck.
        """

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        return await self.commit_noted(offsets, {})

    async def commit_noted(self, offsets: Mapping[TP, int], notes: Mapping[TP, str]) -> bool:
        """Commit *offsets*, with *notes*; return whether the group took them."""
        # Committed offsets are advice for lag tools; the position is in the state. Faust looks for "already
        # rebalanced" in a text where a line break is between the words, so a commit that crosses a rebalance
        # would crash the worker.
        try:
            consumer = self._ensure_consumer()
            await consumer.commit(
                {
                    AioTP(*tp): (offset, f"{note}{_END}" if (note := notes.get(tp)) else "")
                    for tp, offset in offsets.items()
                    if tp in self.assignment()
                }
            )
        except CommitFailedError:
            return False
        except Exception as error:  # noqa: BLE001  advice only
            logger.warning("offsets not committed; lag tools show them late: %(error)r", {"error": error})
            return False
        return True

    def _stopped_set(self) -> None:
        # A crash elsewhere ends the thread too, which closes its loop; nothing waits in it then.
        try:
            super()._stopped_set()
        except RuntimeError:
            self._stopped.set()

    async def still(self, tps: Iterable[TP]) -> None:
        """Stop aiokafka from prefetching *tps*: it does so for all assigned partitions, whatever Faust has
        paused.
        """
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        consumer.pause(*[AioTP(*tp) for tp in tps if AioTP(*tp) in assigned])

    async def committed_offsets(self, tps: Iterable[TP]) -> dict[tuple[str, int], int]:
        """Return where the group stopped in *tps*; 0, the beginning, where it never committed."""
        consumer = self._ensure_consumer()
        return {(tp.topic, tp.partition): await consumer.committed(AioTP(*tp)) or 0 for tp in tps}

    async def committed_notes(self, places: Iterable[Place]) -> dict[Place, str]:
        """Return the metadata that the group has committed with the offsets of *places*."""
        coordinator = self._ensure_consumer()._coordinator
        found = await coordinator.fetch_committed_offsets([AioTP(*place) for place in places])
        return {
            (tp.topic, tp.partition): str(each.metadata or "").removesuffix(_END)
            for tp, each in found.items()
        }

    async def readable(self, offsets: Mapping[Place, int]) -> dict[Place, int]:
        """Return *offsets*, moved to the beginning of logs that do not reach back so far."""
        begins = await self._ensure_consumer().beginning_offsets([AioTP(*place) for place in offsets])
        return {place: max(offset, begins[AioTP(*place)]) for place, offset in offsets.items()}

    async def rejoin(self) -> None:
        """Have the group assign everything again."""
        self._ensure_consumer()._coordinator.request_rejoin()

    async def look_for_missing(self) -> None:
        """Ask the brokers for topics that are not there yet, whose answer has the group's leader share them
        out; aiokafka asks every five minutes.
        """
        client = self._ensure_consumer()._client
        if not all(map(client.cluster.partitions_for_topic, client._topics)):
            client.force_metadata_update()

    def alive(self) -> None:
        """Signal to aiokafka that records are being processed; it sees no fetches of ours and would leave the
        group.
        """
        self._ensure_consumer()._subscription._last_fetch_ended = system_clock.monotonic_s()


class BatchConsumer(driver.Consumer):
    """Hands a processor's agent one event per partition and fetch, at positions that the manager's state
    names.

    Ordinary agents of the same app get their records one by one, as in any Faust app.
    """

    app: Any
    _thread: Any

    @property
    def manager(self) -> PartitionManager:
        manager: PartitionManager = self.app.manager
        return manager

    def _new_consumer_thread(self) -> GroupThread:
        return GroupThread(self, loop=self.loop, beacon=self.beacon)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._delivered: dict[TP, deque[int]] = {}
        self._following: dict[TP, int] = {}
        """Of each partition the offset after the last record that was acked, and all before it; at first
        where reading began.
        """
        self._folded: set[TP] = set()
        """Source partitions that this worker folds."""
        self._read_topics = ReadTopics(self.app.settings)
        self._noted: dict[TP, str] = {}
        """The last notes committed with the offsets of folded partitions."""
        self._agents_next: dict[TP, int] = {}
        """The offsets from which agents continue in partitions that are folded too."""
        self._failed = False

    def commits_no_more(self) -> None:
        """Commit no more: the worker ends, and records that its agents had in hand are delivered again."""
        self._failed = True

    async def _commit_offsets(self, offsets: Mapping[TP, int], start_new_transaction: bool = True) -> bool:
        # Stock commits ahead of changes of tables that are still on their way.
        if self._failed or not await self.app.tables.stock.written() or self._failed:
            return False
        return await super()._commit_offsets(offsets, start_new_transaction)

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        notes = {tp: self._note(tp) or self._read_topics.note(tp.topic) for tp in offsets}
        done: bool = await self._thread.call_thread(self._thread.commit_noted, offsets, notes)
        if done:
            self._noted |= {tp: note for tp, note in notes.items() if tp in self._folded}
        return done

    def _note(self, tp: TP) -> str:
        return self.manager.commit_notes.of((tp.topic, tp.partition))

    def _should_commit(self, tp: TP, offset: int) -> bool:
        # A tick moves a table and no source.
        return super()._should_commit(tp, offset) or (
            tp in self._folded and bool(offset) and self._note(tp) != self._noted.get(tp)
        )

    async def committed_notes(self, places: Iterable[Place]) -> dict[Place, str]:
        """Return the metadata that the group has committed with the offsets of *places*."""
        found: dict[Place, str] = await self._thread.call_thread(self._thread.committed_notes, [*places])
        return found

    def ack(self, message: Any) -> bool:
        if not message.tp.topic.endswith(BATCHES):
            return super().ack(message)
        # The committed offset of its partition is that of the agents which read it too.
        message.acked = True
        self._unacked_messages.discard(message)
        return True

    def _filter_tps_with_pending_acks(self, topics: Any = None) -> Iterator[TP]:
        # Also those where nothing was acked: markers of transactions and skipped batches have no acks, and
        # are passed all the same.
        return (tp for tp in self._following if topics is None or tp in topics or tp.topic in topics)

    def _new_offset(self, tp: TP) -> int | None:
        # Offsets are committed up to the first one not acked, in the order of delivery. A processor's batches
        # are acked in order, one offset each; an ordinary agent may ack in any order.
        acked, delivered = self._acked_index[tp], self._delivered.get(tp, ())
        while delivered and delivered[0] in acked:
            offset = delivered.popleft()
            acked.discard(offset)
            self._following[tp] = offset + 1
        self._acked[tp].clear()
        following = self._following.get(tp)
        return None if following is None else self.manager.feed.passed((tp.topic, tp.partition), following)

    async def perform_seek(self) -> None:
        """Point the feed at the state's positions, and at committed offsets for topics of ordinary agents.

        Nothing flows during the call.
        """
        assigned = self.assignment()
        await self._thread.call_thread(self._thread.still, assigned)
        manager, shared = self.manager, self.app.topics.shared
        stock, app = self.app.tables.stock, manager.settings.app
        logs = {*stock.by_changelog(), *(each.changelog(app) for each in manager.processors.values())}
        ordinary = {
            tp
            for tp in assigned
            if tp.topic not in logs and (tp in shared or tp.topic not in manager.sources)
        }
        await manager.thread(self._read_topics.learn, {tp.topic for tp in ordinary})
        committed = await self._thread.call_thread(self._thread.committed_offsets, ordinary)
        if committed:
            notes = await self.committed_notes(committed)
            committed = self._read_topics.of_these(committed, notes)
        positions = manager.holdings.positions()
        both = {place: offset for place, offset in committed.items() if place in positions}
        both = await self._thread.call_thread(self._thread.readable, both)
        self._begin(positions, {**committed, **both})
        await manager.feed.assign(
            {place: min(offset, both.get(place, offset)) for place, offset in positions.items()},
            {**{place: at for place, at in committed.items() if place not in both}, **stock.followed()},
            manager.skipping.ranges,
        )

    def _begin(self, positions: Mapping[Place, int], committed: Mapping[Place, int]) -> None:
        """Restart the counts of delivered and acked records: from *positions* on in folded partitions, from
        *committed* on in partitions that agents read.
        """
        self._delivered.clear()
        self._folded = {TP(*place) for place in positions}
        self._agents_next = {TP(*place): offset for place, offset in committed.items() if place in positions}
        self._following = {TP(*place): offset for place, offset in {**positions, **committed}.items()}
        # Offsets committed for a processor do not set its start, so they are not asked for: its state's
        # position is committed again.
        self._committed_offset.update(
            {tp: committed.get((tp.topic, tp.partition), 0) for tp in self._following}
        )

    def stay_in_group(self) -> None:
        """Count as a live member, although nothing is fetched."""
        self._thread.alive()

    @Service.task
    async def _await_topics(self) -> None:
        told: set[str] = set()
        while not self.should_stop:
            await self.sleep(LOOK_S)
            awaited = {*self.manager.awaited()}
            if awaited - told:
                logger.warning(
                    "%(topics)s: no such topic, which this worker reads; it is taken up when it is made, and"
                    " the worker is not ready until then",
                    {"topics": ", ".join(sorted(awaited - told))},
                )
            told = awaited
            await self._thread.call_thread(self._thread.look_for_missing)

    async def rejoin(self) -> None:
        """Ask the group for a new assignment, as after a heartbeat that announces a rebalance."""
        await self._thread.call_thread(self._thread.rejoin)

    async def wait_empty(self) -> None:
        """Wait for ordinary agents to ack what they have begun, a session long; what they keep longer is
        delivered again.

        Stock waits for ever: an agent with a long job, or one that never acks, would keep all partitions of
        all workers from moving.
        """
        limit_s = 0.0 if self._failed else self.manager.settings.session_timeout_s
        giving_up = self.loop.call_later(limit_s, self._give_up)
        try:
            await super().wait_empty()
        finally:
            giving_up.cancel()

    def _give_up(self) -> None:
        left = {message for message in self._unacked_messages if not isinstance(message.value, Fetched)}
        places = sorted(f"{each.topic}/{each.partition}/{each.offset}" for each in left)
        logger.warning("not acked in time, to be delivered again: %(places)s", {"places": places})
        self._unacked_messages -= left

    def discard(self, message: Any) -> None:
        """Stop waiting for a message that will not be acked."""
        self._unacked_messages.discard(message)

    async def _drain_messages(self, fetcher: Any) -> None:
        manager, progress_s = self.manager, 0.0
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                # Only while transactions are made: a stuck fold makes this worker leave the group, as it
                # should.
                if manager.flow.room.is_set() or manager.flow.progress_s > progress_s:
                    progress_s = manager.flow.progress_s
                    self._thread.alive()
                if not manager.flow.room.is_set():
                    await self.wait_first(manager.flow.room.wait(), timeout=0.5)
                # manager.open, not only flow_active: Faust does not stop the flow when the assignment before
                # was empty.
                if not manager.open or not self.flow_active or not manager.flow.room.is_set():
                    await asyncio.sleep(0.02)
                    continue
                await self._deliver_next(manager)
        except self.consumer_stopped_errors:
            if not self.transport.app.should_stop:
                raise
        except asyncio.CancelledError:
            if not self.transport.app.should_stop:
                raise

    async def _deliver_next(self, manager: PartitionManager) -> None:
        epoch, generation = manager.epoch, self.app.consumer_generation_id
        fetches = await manager.feed.fetch(epoch, WAIT_S)
        for fetched in fetches:
            if manager.epoch != epoch:
                return  # revoked since: the next positions cover these records
            tp = TP(fetched.topic, fetched.partition)
            if await self.app.tables.stock.follow(fetched):
                continue
            if tp in self._folded:
                await self._deliver(fetched, generation)
            if tp not in self._folded or tp in self._agents_next:
                await self._deliver_singly(fetched, generation)
        # While few records come they are gathered here, for all partitions at once. Records that come after a
        # pause do not wait.
        few = fetches and sum(map(len, fetches)) < FEW_RECORDS
        await asyncio.sleep(
            manager.linger.wait_s(system_clock.monotonic_s(), system_clock.processor_s()) if few else 0
        )

    async def _deliver(self, fetched: Fetched, generation: int) -> None:
        tp = TP(fetched.topic, fetched.partition)
        shared = tp in self._agents_next
        message = ConsumerMessage(
            topic=fetched.topic,
            partition=fetched.partition,
            offset=fetched.last,
            timestamp=system_clock.now_ms() / 1000,
            timestamp_type=1,
            headers=None,
            key=None,
            value=fetched,  # type: ignore[arg-type]  # our codec hands it on as it is
            checksum=None,
            serialized_key_size=0,
            serialized_value_size=len(fetched),
            tp=batches_of(tp) if shared else tp,
            generation_id=generation,
        )
        self.manager.flow.taken(fetched)
        if not shared:
            self._delivered.setdefault(tp, deque()).append(fetched.last)
        await self.callback(message)
        self._read_offset[tp] = fetched.last + 1

    async def _deliver_singly(self, fetched: Fetched, generation: int) -> None:
        """Hand records that ordinary agents read on one by one, as Faust does: at least once, by committed
        offsets.
        """
        tp, epoch = TP(fetched.topic, fetched.partition), self.manager.epoch
        delivered = self._delivered.setdefault(tp, deque())
        records = fetched.records
        columns = zip(
            records.offsets, records.times_ms, records.keys, records.values, records.headers, strict=True
        )
        begin = self._agents_next.get(tp, 0)
        for offset, at_ms, key, value, headers in columns:
            if offset < begin:
                continue  # fetched for a processor that lags behind the agents
            message = ConsumerMessage(
                topic=fetched.topic,
                partition=fetched.partition,
                offset=offset,
                timestamp=at_ms / 1000,
                timestamp_type=int(fetched.broker_time),
                headers=list(headers),  # type: ignore[arg-type]  # a value may be null
                key=key,
                value=value,
                checksum=None,
                serialized_key_size=len(key or b""),
                serialized_value_size=len(value or b""),
                tp=tp,
                generation_id=generation,
            )
            # A full agent must not hold up a rebalance.
            await self.wait_first(self.callback(message), self.suspend_flow.wait())
            if self.manager.epoch != epoch:
                return
            delivered.append(offset)
            self._read_offset[tp] = offset + 1


class BatchTransport(driver.Transport):
    """Faust transport of scheme `holdfast://`."""

    Consumer = BatchConsumer
    Producer = DeclaringProducer
    Conductor = SharingConductor
