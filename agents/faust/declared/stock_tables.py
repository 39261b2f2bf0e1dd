"""Faust's own tables in addition to processors: restored from their changelogs, followed where this worker is
a standby, and written before the record that caused a change is committed. So each record counts in them at
least once.

Overrides private names of faust-streaming 0.15.3, which tests/agents/faust/test_contract.py holds us to.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any

import faust
from confluent_kafka import KafkaException, Message
from faust.exceptions import KeyDecodeError, ValueDecodeError
from faust.stores import memory
from faust.streams import current_event
from faust.types import TP, ConsumerMessage

from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.partitions.types import NOT_IN_GROUP
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, HoldfastError
from holdfast.kafka.clients import CRITICAL, make_reader, reader_options
from holdfast.kafka.fetching.source_fetcher import Fetched
from holdfast.kafka.reading.log_bounds import log_bounds
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.tables.restore import RestoreInterrupted

logger = logging.getLogger(__name__)

READ_RECORDS = 2_000
"""Changelog records taken at once: about 50 ms of the event loop."""
WAIT_MS = 100


class StockTable(faust.Table[Any, Any]):
    """A table of Faust's that knows which of its changes are not on its changelog yet."""

    app: Any

    def send_changelog(
        self,
        partition: int | None,
        key: Any,
        value: Any,
        key_serializer: Any = None,
        value_serializer: Any = None,
    ) -> Any:
        """Send a change, and have the commit of what caused it wait for it."""
        sent = super().send_changelog(partition, key, value, key_serializer, value_serializer)
        self.app.tables.stock.sending(sent)
        return sent

    def on_key_set(self, key: Any, value: Any) -> None:
        """Call when the value of a key is set: the store in memory forgets it when its partition goes."""
        super().on_key_set(key, value)
        event = current_event()
        if event is not None and isinstance(self.data, memory.Store):
            self.data._key_partition[key] = event.message.partition


class StockTables:
    """A worker's work for tables of Faust's. *manager* and the app's consumer exist from the start on."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._sending: set[asyncio.Future[Any]] = set()
        self._next: dict[TP, int] = {}
        """Of each changelog partition held the next offset to be applied, when it was last read."""
        self._active: set[TP] = set()
        self._standby: set[TP] = set()
        self._generation = NOT_IN_GROUP
        self.under_way = False
        self.restored = 0
        """Changelog records that were read to restore."""

    @property
    def _manager(self) -> PartitionManager:
        manager: PartitionManager = self._app.manager
        return manager

    def by_changelog(self) -> dict[str, StockTable]:
        """Return the tables that are no processor's, by the names of their changelogs."""
        own = {processor.table for processor in self._app.processors.values()}
        return {
            table.changelog_topic_name: table for name, table in self._app.tables.items() if name not in own
        }

    # -- writing

    def sending(self, sent: asyncio.Future[Any]) -> None:
        """Count a change that is on its way to the changelog."""
        self._sending.add(sent)
        sent.add_done_callback(self._sent)

    def _sent(self, sent: asyncio.Future[Any]) -> None:
        self._sending.discard(sent)
        if not sent.cancelled() and (error := sent.exception()) is not None:
            # Stock warns, and commits what caused the change.
            self._app.consumer.commits_no_more()
            self._manager.crash(
                HoldfastError(
                    f"a change of a table is not on its changelog: {error}; it is made again after a restart"
                )
            )

    async def written(self) -> bool:
        """Wait until all changes so far are on their changelogs, up to the commit's deadline; return whether
        they are.
        """
        if not self._sending:
            return True
        _, left = await asyncio.wait(self._sending, timeout=self._manager.settings.commit_timeout_s)
        return not left

    # -- an assignment

    async def adopt(
        self, assigned: Collection[TP], standby: Collection[TP], generation: int, epoch: int
    ) -> None:
        """Hold the changelog partitions among *assigned*, and return when the state of all is up to date.

        RestoreInterrupted when a newer assignment comes in the meantime.
        """
        tables = self.by_changelog()
        if not tables:
            return
        held = {tp for tp in assigned if tp.topic in tables}
        starts = self._starts(tables, held, held & set(standby), generation)
        self.under_way, before = True, self.restored
        try:
            async for messages in self._read(starts, epoch):
                for tp, records in messages.items():
                    await self._apply(tables[tp.topic], tp, records)
        finally:
            self.under_way = False
        self._generation, self._standby, self._active = generation, held & set(standby), held - set(standby)
        for topic, table in tables.items():
            # As if all were active: the store in memory drops standby partitions.
            await table.on_recovery_completed({tp for tp in held if tp.topic == topic}, set())
        logger.info(
            "Faust's tables: %(held)d changelog partitions, %(read)d restored from %(records)d records",
            {"held": len(held), "read": len(starts), "records": self.restored - before},
        )

    def _starts(
        self, tables: Mapping[str, StockTable], held: set[TP], standby: set[TP], generation: int
    ) -> dict[TP, int]:
        """Forget partitions that are not kept, and return where to read each partition of *held* that may
        lack something.

        A generation that jumped by more than one means another worker may have written in between.
        """
        kept = held & self._next.keys() if generation in (self._generation, self._generation + 1) else set()
        self._generation = NOT_IN_GROUP  # until this is carried out, nothing is kept
        for topic, table in tables.items():
            _forget(table, {tp.partition for tp in kept if tp.topic == topic})
            for tp in held - kept:
                if tp.topic == topic:
                    _date_windows(table, tp.partition)
        self._next = {tp: self._next[tp] if tp in kept else _stored_next(tables[tp.topic], tp) for tp in held}
        exact = {tp for tp in kept & self._active if tp not in standby}
        return {tp: offset for tp, offset in self._next.items() if tp not in exact}

    async def _read(
        self, starts: Mapping[TP, int], epoch: int
    ) -> AsyncIterator[dict[TP, list[ConsumerMessage]]]:
        if not starts:
            return
        manager, settings = self._manager, self._manager.settings
        config = {
            **settings.consumer(),
            **reader_options(f"{settings.app}-tables", committed=True, wait_ms=WAIT_MS),
        }
        reader = LogReader(make_reader(config, log_level=CRITICAL), limit=READ_RECORDS)
        try:
            ends = await manager.thread(self._begin, reader, starts, settings.request_timeout_s)
            while not reader.has_read(ends):
                if manager.epoch != epoch:
                    raise RestoreInterrupted
                messages = await manager.thread(reader.read, WAIT_MS / 1000)
                if messages:
                    manager.progressed()
                    yield _by_partition(messages)
        except KafkaException as error:
            raise BrokerError(
                f"the changelogs of Faust's tables cannot be read: {error.args[0].str()}"
            ) from error
        finally:
            await manager.thread(reader.close)

    def _begin(self, reader: LogReader, starts: Mapping[TP, int], timeout_s: float) -> dict[Place, int]:
        """Assign *reader*, and return the ends of the logs as they are now. Blocks."""
        tables, begins, ends = self.by_changelog(), dict[Place, int](), dict[Place, int]()
        for tp, start in starts.items():
            place = (tp.topic, tp.partition)
            first, ends[place] = log_bounds(reader.consumer, place, timeout_s)
            if start > ends[place]:
                _rebuild(tables[tp.topic], tp.partition, start, ends[place])
                start = 0
            begins[place] = max(first, start)
        reader.assign(begins)
        return ends

    # -- applying

    async def _apply(self, table: StockTable, tp: TP, messages: list[ConsumerMessage]) -> None:
        events = [await _decoded(table, message) for message in messages]
        # The last of each key: stock drops a key that was deleted and set to 0 in one batch.
        table.apply_changelog_batch(list({event.message.key: event for event in events}.values()))
        for event in events:
            await table.on_changelog_event(event)
            if event.message.value is not None:
                # Stock lets a window that was restored live for ever.
                table._maybe_set_key_ttl(table._to_key(event.key), tp.partition)
        self._next[tp] = messages[-1].offset + 1
        self.restored += len(messages)

    def followed(self) -> dict[Place, int]:
        """Return where to read on the changelogs of standby partitions."""
        return {(tp.topic, tp.partition): self._next[tp] for tp in self._standby}

    async def follow(self, fetched: Fetched) -> bool:
        """Apply what came on a changelog that is followed; return whether it is one."""
        tp = TP(fetched.topic, fetched.partition)
        if tp not in self._standby:
            return False
        records = fetched.records
        columns = zip(records.offsets, records.times_ms, records.keys, records.values, strict=True)
        await self._apply(
            self.by_changelog()[tp.topic],
            tp,
            [_message(tp, *each) for each in columns if each[0] >= self._next[tp]],
        )
        return True


def _message(tp: TP, offset: int, at_ms: int, key: bytes | None, value: bytes | None) -> ConsumerMessage:
    return ConsumerMessage(
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
        timestamp=at_ms / 1000,
        timestamp_type=1,
        headers=[],
        key=key,
        value=value,
        checksum=None,
        serialized_key_size=len(key or b""),
        serialized_value_size=len(value or b""),
        tp=tp,
    )


def _by_partition(messages: Iterable[Message]) -> dict[TP, list[ConsumerMessage]]:
    out: dict[TP, list[ConsumerMessage]] = defaultdict(list)
    for each in messages:
        tp = TP(each.topic() or "", each.partition() or 0)
        out[tp].append(_message(tp, each.offset() or 0, each.timestamp()[1], each.key(), each.value()))
    return out


async def _decoded(table: StockTable, message: ConsumerMessage) -> Any:
    try:
        return await table.changelog_topic.decode(message, propagate=True)
    except (KeyDecodeError, ValueDecodeError) as error:
        raise HoldfastError(
            f"table {table.name}: {message.topic} partition {message.partition} offset {message.offset} does"
            f" not fit its key_type and value_type: {error}; give the table the types it was written with, or"
            " another name"
        ) from error


def _stored_next(table: StockTable, tp: TP) -> int:
    """Return the changelog offset from which on the store of a partition may lack something."""
    offset = table.persisted_offset(tp)
    return 0 if offset is None else offset + 1


def _forget(table: StockTable, kept: Collection[int]) -> None:
    """Drop what the store in memory holds of other partitions than *kept*, and the dates of its windows."""
    store = table.data
    if isinstance(store, memory.Store):
        for key in [key for key, number in store._key_partition.items() if number not in kept]:
            store.data.pop(key, None)
            del store._key_partition[key]
    for dates in (table._partition_timestamps, table._partition_latest_timestamp):
        for number in [number for number in dates if number not in kept]:
            del dates[number]
    for place in [place for place in table._partition_timestamp_keys if place[0] not in kept]:
        del table._partition_timestamp_keys[place]


def _date_windows(table: StockTable, number: int) -> None:
    """Have the windows that a store on disk holds expire, which stock lets live for ever."""
    store: Any = table.data
    if table._should_expire_keys() and not isinstance(store, memory.Store):
        for key in store._visible_keys(store._db_for_partition(number)):
            table._maybe_set_key_ttl(table._to_key(store._decode_key(key)), number)


def _rebuild(table: StockTable, number: int, start: int, end: int) -> None:
    """Replace a store that holds more than its changelog: that is another topic now."""
    logger.warning(
        "table %(table)s partition %(partition)d is rebuilt: its store is at %(start)d of a changelog that"
        " ends at %(end)d",
        {"table": table.name, "partition": number, "start": start, "end": end},
    )
    store: Any = table.data
    store._dbs.pop(number, None)
    gc.collect()  # which closes it
    shutil.rmtree(store.partition_path(number))
