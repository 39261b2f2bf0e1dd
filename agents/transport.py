"""Faust's transport with our feed: group membership stays aiokafka's, records come from confluent-kafka in batches.

One Faust event is one fetch of one partition. Overrides private names of faust-streaming 0.15.3 and aiokafka 0.14.0, which
tests/agents/test_contract.py holds us to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.errors import CommitFailedError
from aiokafka.structs import TopicPartition as AioTP
from faust.transport.drivers import aiokafka as driver
from faust.types import TP, ConsumerMessage

from holdfast.agents.feed import Fetched
from holdfast.agents.keeper import Keeper

logger = logging.getLogger(__name__)

WAIT_S = 0.1
TRICKLE_RECORDS = 1_000


class GroupThread(driver.AIOKafkaConsumerThread):
    """aiokafka's consumer in its thread: joins, heartbeats, commits; it fetches nothing."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        # Faust's 1500 ms is hard-wired; one slow long poll holds up what little goes through this consumer.
        consumer._fetch_max_wait_ms = 100
        return consumer

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        # Committed offsets are advice for lag tools; the position is in the state. Faust looks for "already rebalanced" in a text
        # where a line break stands between the words, so a commit that crosses a rebalance would crash the worker.
        try:
            consumer = self._ensure_consumer()
            await consumer.commit({AioTP(*tp): offset for tp, offset in offsets.items() if tp in self.assignment()})
        except CommitFailedError:
            return False
        except Exception as error:  # noqa: BLE001  advice only
            logger.warning("offsets not committed; lag tools show them late", extra={"cause": repr(error)})
            return False
        return True

    async def still(self, tps: Iterable[TP]) -> None:
        """Stop aiokafka from prefetching *tps*: it does so for all assigned partitions, whatever Faust has paused."""
        consumer = self._ensure_consumer()
        assigned = consumer.assignment()
        consumer.pause(*[AioTP(*tp) for tp in tps if AioTP(*tp) in assigned])

    def alive(self) -> None:
        """Tell aiokafka that records are being processed; it sees no fetches of ours and would leave the group."""
        self._ensure_consumer()._subscription._last_fetch_ended = time.monotonic()


class BatchConsumer(driver.Consumer):
    """Hands agents one event per partition and fetch, at positions that the keeper's state names."""

    app: Any
    _thread: Any

    @property
    def keeper(self) -> Keeper:
        keeper: Keeper = self.app.keeper
        return keeper

    def _new_consumer_thread(self) -> GroupThread:
        return GroupThread(self, loop=self.loop, beacon=self.beacon)

    def _new_offset(self, tp: TP) -> int | None:
        # Acks come in order, one a batch, each the batch's last offset.
        acked = self._acked[tp]
        if not acked:
            return None
        following = max(acked) + 1
        self._acked_index[tp].difference_update(acked)
        acked.clear()
        return int(following)

    async def perform_seek(self) -> None:
        """Point the feed at the state's positions. Called by our recovery, with nothing flowing."""
        await self._thread.call_thread(self._thread.still, self.assignment())
        await self.keeper.feed.assign(self.keeper.positions())

    def discard(self, message: Any) -> None:
        """Let nobody wait for a message that will not be acked."""
        self._unacked_messages.discard(message)

    async def _drain_messages(self, fetcher: Any) -> None:
        keeper = self.keeper
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                if keeper.room.is_set():
                    self._thread.alive()  # only while batches move: a stuck fold makes this worker leave the group, as it should
                else:
                    await self.wait_first(keeper.room.wait(), timeout=0.5)
                # keeper.open, not only flow_active: Faust does not stop the flow when the assignment before was empty.
                if not keeper.open or not self.flow_active or not keeper.room.is_set():
                    await asyncio.sleep(0.02)
                    continue
                await self._deliver_next(keeper)
        except self.consumer_stopped_errors:
            if not self.transport.app.should_stop:
                raise
        except asyncio.CancelledError:
            if not self.transport.app.should_stop:
                raise

    async def _deliver_next(self, keeper: Keeper) -> None:
        epoch, generation = keeper.epoch, self.app.consumer_generation_id
        fetches = await keeper.feed.fetch(epoch, WAIT_S)
        for fetched in fetches:
            if keeper.epoch != epoch:
                return  # revoked meanwhile: the next positions cover these records
            await self._deliver(fetched, generation)
        if fetches and sum(len(each.messages) for each in fetches) < TRICKLE_RECORDS:
            await asyncio.sleep(keeper.linger_s / 2)
        else:
            await asyncio.sleep(0)

    async def _deliver(self, fetched: Fetched, generation: int) -> None:
        tp = TP(fetched.topic, fetched.partition)
        message = ConsumerMessage(
            topic=fetched.topic,
            partition=fetched.partition,
            offset=fetched.last,
            timestamp=time.time(),
            timestamp_type=1,
            headers=None,
            key=None,
            value=fetched,  # type: ignore[arg-type]  # our codec hands it on as it is
            checksum=None,
            serialized_key_size=0,
            serialized_value_size=len(fetched.messages),
            tp=tp,
            generation_id=generation,
        )
        self.keeper.taken(fetched)
        await self.callback(message)
        self._read_offset[tp] = fetched.last + 1


class BatchTransport(driver.Transport):
    """Faust transport of scheme `holdfast://`."""

    Consumer = BatchConsumer
