"""Fetches partitions from their leaders, ahead and within a bound: compressed bytes as they came, in the
order in which they came.

aiokafka's client finds brokers, connects and authenticates; requests and the handling of responses are here.
One task for each leader has one request under way, which carries all partitions of that leader that have
room. Nothing is unpacked here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import IncompatibleBrokerVersion, for_code
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition
from confluent_kafka import KafkaError

from holdfast.clock import Clock, system_clock
from holdfast.core.kafka.fetch_requests import (
    FETCH,
    FETCH_VERSIONS,
    Answered,
    Wanted,
    fetch_request,
    fetched,
    whole_batches,
)
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, HoldfastError, OutOfRangeError, TopicError, WireError
from holdfast.kafka.codes import NO_LEADER, OUT_OF_LOG
from holdfast.kafka.fetching.fetched_partition import Chunk, FetchedPartition, HeldResponse
from holdfast.kafka.requests.raw_request import RawRequest

logger = logging.getLogger(__name__)

MAX_WAIT_MS = 100
FULL_WAIT_MS = 10
"""The time for which a leader holds a request while one of its partitions has no room: that may change any
moment, and only one request is under way. Bounded reads use it too, because they read one partition after
another.
"""
LEAST_SHARE_BYTES = 512 << 10
LEAST_ROOM_BYTES = 64 << 10
LARGEST_REQUEST_BYTES = 256 << 20
SOCKET_BYTES = 4 << 20
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
UNKNOWN_TOPIC_S = 30.0
"""The time for which a topic may be unknown before it counts as missing. A topic just created, or one of a
broker just started, is not known at once.
"""
STALE_CLIENT_S = 5.0
"""After so long without an answer the client bootstraps again, from the addresses in the settings."""
CHECK_EVERY_S, UNKNOWN_PAUSE_S = 1.0, 0.2
_CLOSE_S = 5.0

EARLIEST = -2


class _Call(RawRequest):
    """A request whose answer is not copied."""

    def decode(self, buffer: BytesIO) -> tuple[int, bytes]:
        return buffer.tell(), buffer.getvalue()


class Fetcher:
    """Keeps `chunks` filled for the sources that were last given, up to *queue_bytes* and one batch of each
    leader.

    With *exact* an offset that the log does not hold any more is always a failure, the beginning included.
    Used from one event loop. `arrived` is set whenever there is something to take, or `failure` to raise.
    """

    def __init__(
        self,
        connect: Callable[[], AIOKafkaClient],
        *,
        queue_bytes: int,
        timeout_s: float,
        exact: bool = False,
        clock: Clock = system_clock,
    ) -> None:
        self._connect, self._queue_bytes, self._timeout_s, self._exact, self._clock = (
            connect,
            queue_bytes,
            timeout_s,
            exact,
            clock,
        )
        self._client: Any = None
        self._sources: dict[Place, FetchedPartition] = {}
        self._share_bytes = queue_bytes
        self.chunks: deque[Chunk] = deque()
        self._held_bytes = self._asked_bytes = 0
        self.arrived, self._changed = asyncio.Event(), asyncio.Event()
        self._room: dict[int, asyncio.Event] = {}
        self._steering: asyncio.Task[None] | None = None
        self._leaders: dict[int, asyncio.Task[None]] = {}
        self._failing: set[int] = set()
        self._begin_again: list[FetchedPartition] = []
        self._answered_s, self._stale = 0.0, False
        self.failure: HoldfastError | None = None
        self.broker_down = False

    def assign(self, sources: Mapping[Place, FetchedPartition]) -> None:
        """Fetch only *sources*; drop whatever was fetched before, including responses still under way."""
        self._sources, self._begin_again = dict(sources), []
        self._share_bytes = max(LEAST_SHARE_BYTES, self._queue_bytes // max(1, len(sources)))
        while self.chunks:
            self.done(self.chunks.popleft())
        self.failure, self._answered_s = None, self._clock.monotonic_s()
        self.arrived.clear()
        if not sources:
            self.broker_down = False
        elif self._steering is None:
            self._steering = asyncio.ensure_future(self._steer())
        self.wake()

    def wake(self) -> None:
        """Look again at who wants what, and at once."""
        self._changed.set()
        for room in self._room.values():
            room.set()

    def restart(self, source: FetchedPartition, offset: int, pause_s: float = 0.0) -> None:
        """Drop the queued chunks of *source* and fetch it from *offset* on, after a pause."""
        for chunk in [chunk for chunk in self.chunks if chunk.source is source]:
            self.chunks.remove(chunk)
            self.done(chunk)
        source.following, source.resting_until_s = offset, self._clock.monotonic_s() + pause_s
        self.wake()

    def done(self, chunk: Chunk) -> None:
        """Let go of a chunk that was taken from `chunks`."""
        source = chunk.source
        source.queued_bytes -= len(chunk.data)
        source.chunks -= 1
        chunk.answer.chunks -= 1
        if not chunk.answer.chunks:
            self._held_bytes -= chunk.answer.size_bytes
        for room in self._room.values():
            room.set()

    async def close(self) -> None:
        """Stop, and close all connections."""
        self.assign({})
        tasks = [*self._leaders.values(), *([self._steering] if self._steering is not None else [])]
        self._steering, self._leaders = None, {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSE_S)
        await self._disconnect()

    # -- who leads what

    async def _steer(self) -> None:
        """Keep a client connected, the leaders known, and a task running for each leader.

        An unexpected error ends it and becomes `failure`, which wakes the reader.
        """
        try:
            while True:
                self._changed.clear()
                if self._sources and await self._connected():
                    await self._know_leaders()
                with contextlib.suppress(TimeoutError):
                    unknown = any(self._leader(source) is None for source in self._sources.values())
                    # Not wait_for, which forgets a cancellation that comes with what it waits for
                    # (python/cpython#86296): as in `close`.
                    async with asyncio.timeout(UNKNOWN_PAUSE_S if unknown else CHECK_EVERY_S):
                        await self._changed.wait()
        except Exception as error:
            logger.exception("fetching has ended")
            self._fail(HoldfastError(f"fetching has ended: {error!r}"))

    async def _connected(self) -> bool:
        now_s = self._clock.monotonic_s()
        if self._client is not None and self._failing and now_s - self._answered_s > STALE_CLIENT_S:
            for task in self._leaders.values():
                task.cancel()
            self._leaders.clear()
            self._failing.clear()
            await self._disconnect()
        if self._client is not None:
            return True
        client = self._connect()
        try:
            async with asyncio.timeout(self._timeout_s):
                await client.bootstrap()
        except (AioKafkaError, TimeoutError, OSError) as error:
            self._down(f"{type(error).__name__}: {error}")
            await _closed(client)
            return False
        self._client, self._answered_s = client, self._clock.monotonic_s()
        return True

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _closed(client)

    def _down(self, why: str) -> None:
        if not self.broker_down:  # an absent broker would be logged many times a second
            logger.warning("sources: no broker answers: %(why)s", {"why": why})
        self.broker_down = True

    def _up(self) -> None:
        if self.broker_down:
            logger.warning("sources: a broker answers again")
        self.broker_down = False

    async def _know_leaders(self) -> None:
        client, sources = self._client, self._sources
        with contextlib.suppress(AioKafkaError, TimeoutError, OSError):
            async with asyncio.timeout(self._timeout_s):
                await client.set_topics({topic for topic, _ in sources})
            if self._stale or any(self._leader(source) is None for source in sources.values()):
                self._stale = False
                async with asyncio.timeout(self._timeout_s):
                    await client.force_metadata_update()
        if client is not self._client or sources is not self._sources:
            return
        for source in sources.values():
            self._check_known(source)
        for node in {self._leader(source) for source in sources.values()} - {None}:
            assert node is not None
            if (task := self._leaders.get(node)) is None or task.done():
                self._room.setdefault(node, asyncio.Event())
                self._leaders[node] = asyncio.ensure_future(self._follow(node))
                self._leaders[node].add_done_callback(self._followed)

    def _followed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("fetching has ended", exc_info=error)
            self._fail(HoldfastError(f"fetching has ended: {error!r}"))

    def _leader(self, source: FetchedPartition) -> int | None:
        if self._client is None:
            return None
        node = self._client.cluster.leader_for_partition(TopicPartition(*source.place))
        return None if node is None or node < 0 else int(node)

    def _check_known(self, source: FetchedPartition) -> None:
        topic, partition = source.place
        if topic in self._client.cluster.unauthorized_topics:
            self._fail(
                TopicError(
                    f"{source}: not authorized to read the topic; give this worker's user Read and Describe"
                    " on it"
                )
            )
        if partition in (self._client.cluster.partitions_for_topic(topic) or ()):
            source.unknown_since_s = -1.0
            return
        now_s = self._clock.monotonic_s()
        if source.unknown_since_s < 0 or self.broker_down or self._failing:
            source.unknown_since_s = now_s
        elif now_s - source.unknown_since_s > UNKNOWN_TOPIC_S:
            self._fail(
                TopicError(
                    f"{source}: unknown to the brokers for {UNKNOWN_TOPIC_S:g} s: was the topic deleted?"
                )
            )

    def _fail(self, error: HoldfastError) -> None:
        self.failure = self.failure or error
        self.arrived.set()

    # -- fetching from one leader

    async def _follow(self, node: int) -> None:
        """Fetch from *node* what it leads and there is room for, for as long as this client lasts."""
        room, pause_s, client = self._room[node], PAUSE_S, self._client
        while client is self._client:
            room.clear()
            wanted, full = self._wanted(node)
            if not wanted:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._rest_s(node)):
                        await room.wait()
                continue
            try:
                await self._ask(node, wanted, full)
            except IncompatibleBrokerVersion as error:
                self._fail(
                    BrokerError(
                        f"broker {node} cannot be fetched from; this needs Kafka 2.8 or newer: {error}"
                    )
                )
                return
            except (AioKafkaError, TimeoutError, OSError, WireError) as error:
                self._no_answer(node, error)
                await asyncio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
            else:
                pause_s = PAUSE_S

    def _wanted(self, node: int) -> tuple[dict[FetchedPartition, int], bool]:
        """Return the sources to fetch from *node* with how many bytes of each, and whether one that it
        leads has no room.
        """
        now_s, full = self._clock.monotonic_s(), False
        wanted: dict[FetchedPartition, int] = {}
        for source in self._sources.values():
            if source.stopped or now_s < source.resting_until_s or self._leader(source) != node:
                continue
            share_bytes = max(self._share_bytes, source.size_bytes)
            if source.chunks and source.queued_bytes > share_bytes // 2:
                full = True
            else:
                wanted[source] = share_bytes - (source.queued_bytes if source.chunks else 0)
        if wanted and self._queue_bytes - self._held_bytes - self._asked_bytes < min(
            LEAST_ROOM_BYTES, self._queue_bytes
        ):
            return {}, True
        return wanted, full

    def _rest_s(self, node: int) -> float:
        now_s = self._clock.monotonic_s()
        rests = [
            source.resting_until_s - now_s
            for source in self._sources.values()
            if source.resting_until_s > now_s
        ]
        return max(0.001, min([CHECK_EVERY_S, *rests]))

    async def _ask(self, node: int, wanted: dict[FetchedPartition, int], full: bool) -> None:
        room_bytes = max(self._queue_bytes - self._held_bytes - self._asked_bytes, LEAST_ROOM_BYTES)
        max_bytes = min(room_bytes, sum(wanted.values()))
        sources = self._sources
        topics: dict[str, int] = {}
        for source in wanted:
            topics.setdefault(source.place[0], len(topics))
        ordered = sorted(wanted, key=lambda source: topics[source.place[0]])  # by turns, also of topics
        body = fetch_request(
            [Wanted(source.place, source.following, wanted[source]) for source in ordered],
            max_wait_ms=FULL_WAIT_MS if full or self._exact else MAX_WAIT_MS,
            max_bytes=max_bytes,
        )
        asked = {source.place: (source, source.following) for source in ordered}
        self._asked_bytes += max_bytes
        try:
            await self._open_wide(node)
            at, data = await self._client.send(node, _Call(FETCH, FETCH_VERSIONS, body))
        finally:
            self._asked_bytes -= max_bytes
        code, answers = fetched(data, at)
        if code:
            raise for_code(code)(f"broker {node} refuses a fetch")
        self._answered_s = self._clock.monotonic_s()
        self._up()
        self._failing.discard(node)
        if sources is self._sources:
            self._take(len(data), answers, asked)
            if self._begin_again:
                await self._to_beginning(node)

    async def _open_wide(self, node: int) -> None:
        """Have the connection take all that the socket has in one turn of the event loop.

        By default it stops at 128 KiB, and the next turn is a fold's turn later: large answers would come at
        some 30 MB/s.
        """
        if await self._client.ready(node):
            reader = self._client._conns[node, ConnectionGroup.DEFAULT]._reader
            if reader is not None:
                reader._limit = SOCKET_BYTES

    async def _to_beginning(self, node: int) -> None:
        """Ask where the logs of those begin that are to be read from there."""
        sources, self._begin_again = {source.place: source for source in self._begin_again}, []
        for (topic, partition), source in sources.items():
            answer = await self._client.send(node, OffsetRequest(-1, 1, [(topic, [(partition, EARLIEST)])]))
            ((_, ((_, code, _, offset),)),) = answer.topics
            if not code and self._sources.get(source.place) is source:
                if offset and not source.advised:
                    logger.warning(
                        "%(source)s begins at offset %(offset)d, the records before it were deleted: tables"
                        " that begin now are partial",
                        {"source": source, "offset": offset},
                    )
                    source.head = offset
                source.following, source.resting_until_s = offset, 0.0

    def _take(
        self, size_bytes: int, answers: list[Answered], asked: Mapping[Place, tuple[FetchedPartition, int]]
    ) -> None:
        held, moved = HeldResponse(size_bytes, 0), False
        for answered in answers:
            source, offset = asked[answered.place]
            if source.following != offset or source.stopped:
                continue  # restarted elsewhere since the request
            if answered.code:
                moved = self._refused(source, answered) or moved
                continue
            source.pause_s, source.last_stable = 0.0, answered.last_stable
            if len(answered.records):
                self._queue(source, answered, held)
        if held.chunks:
            self._held_bytes += held.size_bytes
            self.arrived.set()
        if moved:
            self._metadata_is_old()

    def _queue(self, source: FetchedPartition, answered: Answered, held: HeldResponse) -> None:
        records, following = answered.records, source.following
        try:
            if (whole := whole_batches(records)) is None:
                # Cut short: what comes first is larger than was asked for.
                source.size_bytes = min(LARGEST_REQUEST_BYTES, 2 * max(self._share_bytes, source.size_bytes))
                self._turn(source)
                return
            records, following = records[: whole[0]], max(following, whole[1])
        except WireError:
            source.resting_until_s = float("inf")  # its reader reports the error, and restarts it
        source.size_bytes = 0
        chunk = Chunk(source, source.following, following, records, answered.aborted, held)
        held.chunks += 1
        source.chunks += 1
        source.queued_bytes += len(records)
        source.following = following
        self.chunks.append(chunk)
        self._turn(source)

    def _turn(self, source: FetchedPartition) -> None:
        """Have *source* come last in the next request: leaders fill an answer in the order of the request."""
        if self._sources.get(source.place) is source:
            self._sources[source.place] = self._sources.pop(source.place)

    def _refused(self, source: FetchedPartition, answered: Answered) -> bool:
        """Judge an error code; return whether the metadata is to be asked for."""
        code = answered.code
        if code in OUT_OF_LOG:
            self._out_of_range(source)
            return False
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._fail(
                TopicError(f"{source}: {for_code(code).__name__}; give this worker's user Read on the topic")
            )
            return False
        if code not in NO_LEADER and not source.pause_s:
            logger.warning(
                "source %(source)s: %(error)s (%(code)d), trying again",
                {"source": source, "error": for_code(code).__name__, "code": code},
            )
        self._rest(source)
        return True

    def _rest(self, source: FetchedPartition) -> None:
        source.pause_s = min(LONGEST_PAUSE_S, 2 * source.pause_s or PAUSE_S)
        source.resting_until_s = self._clock.monotonic_s() + source.pause_s

    def _out_of_range(self, source: FetchedPartition) -> None:
        if not self._exact and (source.following in (0, source.head) or source.advised):
            if source.following:
                logger.warning(
                    "%(source)s: the committed offset is not in the log any more, reading from its beginning",
                    {"source": source},
                )
            self._rest(source)
            self._begin_again.append(source)
            return
        self._fail(
            OutOfRangeError(
                f"{source}: offset {source.following} is not in the log any more (retention, or the topic was"
                " made again): records between the state's position and the log's start are lost. Delete the"
                " table's changelog and stores to fold what is left"
            )
        )

    def _no_answer(self, node: int, error: Exception) -> None:
        self._failing.add(node)
        if self._failing >= {
            leader for leader in map(self._leader, self._sources.values()) if leader is not None
        }:
            self._down(f"{type(error).__name__}: {error}")
        self._metadata_is_old()

    def _metadata_is_old(self) -> None:
        self._stale = True
        self._changed.set()


async def _closed(client: Any) -> None:
    with contextlib.suppress(AioKafkaError, TimeoutError, OSError):
        await asyncio.wait_for(client.close(), _CLOSE_S)
