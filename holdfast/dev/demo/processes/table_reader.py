"""Asks the workers of the demo as a user's service would: by TableClient, and by plain HTTP on each
worker's own port.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from confluent_kafka import KafkaError, Message
from prometheus_client.parser import text_string_to_metric_families

from holdfast.clients.tables.client import Answer, TableClient
from holdfast.clients.tables.directory import WorkersTopic
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import Frame, Heartbeat, coordination_partition, encode
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import RowCodec, combine_digests, digest, row_key
from holdfast.dev.demo.processes.fleet import FleetClaim
from holdfast.errors import BrokerError, DemoError
from holdfast.kafka.clients import make_writer

logger = logging.getLogger(__name__)

PROBE_GROUP, PROBE_CLIENT, PROBE_INSTANCE = "demo", "demo-desk", "00000001"
WRITE_TIMEOUT_S = READ_TIMEOUT_S = 60.0
POLL_S = 0.1
LIMIT_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenHeartbeat:
    """A heartbeat of the reader's own claim that is in the log, and when its acknowledgement came
    (monotonic).
    """

    key: str
    partition: int
    offset: int
    current_offset: int
    acked_s: float


class TableReader:
    """One client of the tables. Use it as an async context manager."""

    def __init__(
        self,
        settings: Settings,
        processor: Processor[Frame, GuardedRow],
        *,
        partitions: int,
        clock: Clock = system_clock,
    ) -> None:
        self._settings, self.processor, self._partitions, self._clock = settings, processor, partitions, clock
        self._directory = WorkersTopic(settings, clock)
        self.tables = TableClient(settings, [processor], directory=self._directory, clock=clock)
        self._producer = make_writer(
            settings.producer(**{"enable.idempotence": True, "linger.ms": 0, "message.timeout.ms": 10_000}),
            logger=logger,
        )
        self._topics = {place: probe_topic(place, partitions) for place in range(partitions)}
        self._written = dict.fromkeys(range(partitions), 0)
        self._http: aiohttp.ClientSession | None = None
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="demo-desk", daemon=True)
        self.frames = 0
        """Frames the reader has put into the log itself."""

    async def __aenter__(self) -> Self:
        self._poller.start()
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60.0))
        await self.tables.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        await self.tables.__aexit__(kind, error, traceback)
        if self._http is not None:
            await self._http.close()
        await asyncio.to_thread(self._poller.join, 5.0)

    # -- who holds what

    async def owners(self) -> dict[int, str]:
        """Return the URL of each partition's owner, as the workers have announced it up to now."""
        await self._directory.refresh(5.0)
        workers = self._directory.workers
        held = {
            place: workers.owner(self.processor.name, self.processor.version, place)
            for place in range(self._partitions)
        }
        return {place: url for place, url in held.items() if url is not None}

    async def shared_among(
        self, urls: Sequence[str], deadline_s: float, alive: Callable[[], None]
    ) -> dict[int, str]:
        """Wait until every partition is served and each of *urls* serves some; return who serves which.

        *alive* raises if a worker is gone.
        """
        until_s = self._clock.monotonic_s() + deadline_s
        causes: list[str] = []
        while True:
            alive()
            owners = await self.owners()
            causes = [cause for url in urls if (cause := await self._unready(url)) is not None]
            if not causes and len(owners) == self._partitions and set(owners.values()) == set(urls):
                return owners
            if self._clock.monotonic_s() > until_s:
                found = "; ".join(causes) or f"partitions are owned like this: {owners}"
                raise DemoError(
                    f"the workers did not share the {self._partitions} partitions within {deadline_s:g} s:"
                    f" {found}"
                )
            await asyncio.sleep(POLL_S)

    async def _unready(self, url: str) -> str | None:
        try:
            status, body = await self.ask(f"{url}/health/ready")
        except aiohttp.ClientError as error:
            return f"{url}: {error}"
        return None if status == 200 else f"{url}: {body.get('cause', status)}"

    async def answered_by(self, url: str, written: WrittenHeartbeat) -> str:
        """Ask the worker at *url* for a row it may not hold; return the URL of the worker that had it,
        *url* itself or where it pointed to.
        """
        path = (
            f"/tables/{self.processor.name}/{written.partition}/rows/{written.key}?at-offset={written.offset}"
        )
        status, body = await self.ask(url + path)
        if status == 421:
            url = str(body["owner"])
            status, body = await self.ask(url + path)
        if status != 200 or not body["found"] or body["value"]["current_offset"] != written.current_offset:
            raise DemoError(
                f"GET {url}{path} answered {status} {body}, not the row with offset {written.current_offset}"
            )
        return url

    async def ask(self, url: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON body of a GET, redirects not followed."""
        assert self._http is not None, "use `async with`"
        async with self._http.get(url, allow_redirects=False) as response:
            return response.status, await response.json(content_type=None)

    async def metric(self, url: str, name: str) -> dict[int, int]:
        """Return the values of the metric *name* of the worker at *url*, by partition of the table."""
        assert self._http is not None, "use `async with`"
        async with self._http.get(f"{url}/metrics", headers={"Accept": "text/plain"}) as response:
            text = await response.text()
        samples = (
            sample
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        )
        return {
            int(each.labels["partition"]): int(each.value)
            for each in samples
            if each.labels["table"] == self.processor.name
        }

    # -- writing and reading

    async def write(self, place: int) -> WrittenHeartbeat:
        """Put a heartbeat of the reader's own claim in this partition into the log; return when it is
        acknowledged.
        """
        self._written[place] += 1
        topic, current_offset = self._topics[place], self._written[place]
        frame = Heartbeat(
            self._clock.now_ms() // 1000, PROBE_INSTANCE, PROBE_CLIENT, PROBE_GROUP, topic, 0, current_offset
        )
        loop = asyncio.get_running_loop()
        acked: asyncio.Future[tuple[int, float]] = loop.create_future()

        def delivered(error: KafkaError | None, message: Message) -> None:
            at_s, offset = self._clock.monotonic_s(), message.offset()
            if error is not None or offset is None:
                loop.call_soon_threadsafe(
                    _fail,
                    acked,
                    BrokerError(f"a heartbeat was not written: {error.str() if error else 'no offset'}"),
                )
            else:
                loop.call_soon_threadsafe(_settle, acked, (offset, at_s))

        self._producer.produce(
            self._settings.coordination_topic, encode(frame), partition=place, on_delivery=delivered
        )
        async with asyncio.timeout(WRITE_TIMEOUT_S):
            offset, acked_s = await acked
        self.frames += 1
        return WrittenHeartbeat(
            key=claim_key(PROBE_GROUP, topic, 0),
            partition=place,
            offset=offset,
            current_offset=current_offset,
            acked_s=acked_s,
        )

    async def read_back(self, written: WrittenHeartbeat, timeout_s: float) -> float:
        """Read a written heartbeat back, from any worker that serves it; return how long after its
        acknowledgement the answer was there, in seconds.
        """
        answer = await self.tables.get(
            self.processor, written.key, at_least=(written.partition, written.offset), timeout_s=timeout_s
        )
        at_s, claim = self._clock.monotonic_s(), answer.value
        if (
            not isinstance(claim, Claim)
            or claim.current_offset != written.current_offset
            or answer.as_of_offset < written.offset
        ):
            raise DemoError(
                f"{written.key}: offset {written.offset} wrote {written.current_offset}, the answer is"
                f" {answer}"
            )
        return at_s - written.acked_s

    async def rounds(self, count: int, longest_s: float) -> list[float]:
        """Write and read back *count* times, over all partitions in turn, once each at least; return the
        delays in seconds.

        On a machine that is busy otherwise it is fewer times, for *longest_s*.
        """
        until_s = self._clock.monotonic_s() + longest_s
        delays: list[float] = []
        while len(delays) < count and (len(delays) < self._partitions or self._clock.monotonic_s() < until_s):
            delays.append(
                await self.read_back(await self.write(len(delays) % self._partitions), READ_TIMEOUT_S)
            )
        return delays

    def _poll(self) -> None:
        while not self._closing.is_set():
            self._producer.poll(0.1)

    # -- the whole table

    async def table(self, ends: dict[int, int], timeout_s: float) -> Snapshot:
        """Read every row through the workers that own them, each partition as of *ends* at least."""
        codec: RowCodec[GuardedRow] = RowCodec(self.processor.row)
        began_s = self._clock.monotonic_s()
        rows: dict[str, Claim] = {}
        digests: list[tuple[int, str]] = []
        for place in range(self._partitions):
            at_least = (place, ends[place]) if place in ends else None
            answers: list[Answer[GuardedRow]] = [
                answer
                async for answer in self.tables.scan(
                    self.processor, partition=place, at_least=at_least, timeout_s=timeout_s
                )
            ]
            digests.append(
                (place, digest((row_key(answer.key), codec.encode(answer.value)) for answer in answers))
            )
            rows.update((answer.key, answer.value) for answer in answers if isinstance(answer.value, Claim))
        return Snapshot(
            rows=rows, digest=combine_digests(digests), seconds=self._clock.monotonic_s() - began_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All claims of the table, its hash, and how long it took to read."""

    rows: dict[str, Claim]
    digest: str
    seconds: float


def _settle(future: asyncio.Future[tuple[int, float]], result: tuple[int, float]) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[tuple[int, float]], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def probe_topic(place: int, partitions: int) -> str:
    """Return the name of a topic whose claims live in coordination partition *place*.

    >>> [probe_topic(place, 4) for place in range(4)]
    ['probe-4', 'probe-0', 'probe-10', 'probe-1']
    """
    return next(
        name
        for number in range(100 * partitions)
        if coordination_partition(name := f"probe-{number}", partitions) == place
    )


def compare(rows: dict[str, Claim], entries: Sequence[FleetClaim]) -> None:
    """Raise DemoError unless *rows* say of every claim of the fleet what its books say."""
    wrong = []
    for entry in entries:
        claim = rows.get(entry.key)
        booked = (entry.owner.client_id, entry.instance_id, entry.epoch, entry.offset, entry.refused)
        if claim is None:
            wrong.append(f"{entry.key} has no row")
            continue
        refused = 0 if claim.anomaly is None else claim.anomaly.count
        if (claim.client_id, claim.instance_id, claim.epoch, claim.current_offset, refused) != booked:
            wrong.append(f"{entry.key} is {claim}, the fleet's books say {booked}")
    if wrong:
        shown = "; ".join(wrong[:LIMIT_SHOWN])
        raise DemoError(f"{len(wrong)} of {len(entries)} claims differ from what the fleet did: {shown}")
