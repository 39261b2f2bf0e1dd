"""The worker of each partition of each table, as the workers themselves announce it on the application's
workers topic.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicCollection, TopicPartition

# the package does not declare what it re-exports
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ListOffsetsResultInfo,
    OffsetSpec,
)
from yarl import URL

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.query_wire import TableClaims, WorkerClaims, decode_worker
from holdfast.core.engine.upgrades import SWITCH_KEY, Switch, read_switch
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, ConfigError
from holdfast.kafka.clients import make_admin, make_reader, reader_options
from holdfast.kafka.codes import LEADER_MOVES, NO_ANSWER, NO_TOPIC, code_of
from holdfast.kafka.leader_requests import REQUEST_AT_LEAST_S, list_offsets
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.kafka.reading.skipper import Skipper

logger = logging.getLogger(__name__)
A = TypeVar("A")

CLOSE_S = LIMIT_PRIMING_S = 5.0
_LEADER_WAIT_S = 0.05
_TURN_S = 0.1
LIMIT_WORKERS = LIMIT_SWITCHES = 10_000
LIMIT_RECORD_BYTES = 1 << 20
LIMIT_URL = 300
LIMIT_PARTITIONS = 100_000


class Workers:
    """The workers' claims to partitions, at one moment. Claims are by table name and version; other versions
    are other tables.

    >>> old = WorkerClaims(url="http://a", generation=1, started_ms=0, at_ms=0, tables={"t": TableClaims(version=1, partitions=2, active=[0, 1])})
    >>> new = WorkerClaims(url="http://b", generation=2, started_ms=0, at_ms=0, tables={"t": TableClaims(version=1, partitions=2, active=[1])})
    >>> workers = Workers([old, new])
    >>> workers.owner("t", 1, 0), workers.owner("t", 1, 1), workers.owner("t", 2, 0), workers.partitions("t", 1)
    ('http://a', 'http://b', None, 2)
    """  # noqa: E501

    __slots__ = (
        "_building",
        "_by_age",
        "_claimants",
        "_partial",
        "_partitions",
        "_standbys",
        "_switches",
        "_waiting",
        "urls",
    )

    def __init__(self, claims: Iterable[WorkerClaims] = (), switches: Iterable[Switch] = ()) -> None:
        self._switches = {switch.table: switch for switch in switches}
        self._building: set[tuple[str, str, int, int]] = set()
        self._waiting: set[tuple[str, str, int, int]] = set()
        # Ascending, so that the last write into the maps is the newest claim.
        self._by_age = sorted(claims, key=lambda worker: (worker.generation, worker.at_ms, worker.url))
        self._standbys: dict[tuple[str, int, int], list[str]] = {}
        self._partitions: dict[tuple[str, int], int] = {}
        self.urls = frozenset(worker.url for worker in self._by_age)
        self._claimants: dict[tuple[str, int, int], list[str]] = {}
        self._partial: set[tuple[str, int, int]] = set()
        for worker in self._by_age:
            for table, held in worker.tables.items():
                self._take(worker.url, table, held)

    def _take(self, url: str, table: str, held: TableClaims) -> None:
        self._partitions[table, held.version] = held.partitions
        for partition in held.active:
            self._claimants.setdefault((table, held.version, partition), []).insert(0, url)
        for partition in held.standby:
            self._standbys.setdefault((table, held.version, partition), []).insert(0, url)
        self._partial.update((table, held.version, partition) for partition in held.partial)
        self._building.update((url, table, held.version, partition) for partition in held.building)
        self._waiting.update((url, table, held.version, partition) for partition in held.waiting)
        if (earlier := held.earlier) is not None:
            self._partitions[table, earlier.version] = held.partitions
            for partition in earlier.partitions:
                self._claimants.setdefault((table, earlier.version, partition), []).insert(0, url)

    @property
    def announced(self) -> Sequence[WorkerClaims]:
        """Return the record of each worker, the newest claims last."""
        return self._by_age

    def switch(self, table: str) -> Switch | None:
        """Return the record of the table's current version; None if it was never written."""
        return self._switches.get(table)

    def owning(self, table: str, version: int, partition: int) -> tuple[str, bool] | None:
        """Return the URL of the worker with the newest claim on the partition, and whether it says that it is
        being built.
        """
        url = self.owner(table, version, partition)
        return None if url is None else (url, (url, table, version, partition) in self._building)

    def stage(self, table: str, version: int, partition: int) -> str | None:
        """Return the progress of the owner of a partition with a version that is not read yet: it is
        "building" it, or that is "waiting" for partitions of its writers that old workers have; None for one
        that is read, or that has no owner.
        """
        place = (self.owner(table, version, partition) or "", table, version, partition)
        if place not in self._building:
            return None
        return "waiting" if place in self._waiting else "building"

    def answering(self, table: str, versions: Sequence[int]) -> int:
        """Return which of *versions* a question is to be asked of: the current one, or another while no
        worker serves that. Without a record, the lowest that is served is current.

        >>> claims = WorkerClaims(url="http://a", generation=1, started_ms=0, at_ms=0, tables={"t": TableClaims(version=2, partitions=2)})
        >>> Workers([claims]).answering("t", [2, 1]), Workers().answering("t", [2, 1])
        (2, 2)
        """  # noqa: E501
        served = [version for version in sorted(versions) if self.partitions(table, version)]
        switch = self.switch(table)
        if switch is not None and switch.version in served:
            return switch.version
        return served[0] if served else max(versions)

    def owner(self, table: str, version: int, partition: int) -> str | None:
        """Return the URL of the worker with the newest claim on the partition."""
        claimants = self._claimants.get((table, version, partition))
        return claimants[0] if claimants else None

    def claimants(self, table: str, version: int, partition: int) -> list[str]:
        """Return the URLs of all workers that claim to own the partition, newest claim first: a claim may
        be old, or false.
        """
        return self._claimants.get((table, version, partition), [])

    def standbys(self, table: str, version: int, partition: int) -> list[str]:
        """Return the URLs of the workers that keep a replica of the partition, newest claim first."""
        return self._standbys.get((table, version, partition), [])

    def is_partial(self, table: str, version: int, partition: int) -> bool:
        """Return whether a worker that has the partition says that it began after a hole in a source."""
        return (table, version, partition) in self._partial

    def partitions(self, table: str, version: int) -> int:
        """Return how many partitions the table has, 0 when no worker has announced it."""
        return self._partitions.get((table, version), 0)

    def versions(self, table: str) -> list[int]:
        """Return the versions of the table that workers serve."""
        return sorted(version for name, version in self._partitions if name == table)


def read_claims(url: str, value: bytes) -> WorkerClaims:
    """Return the claims in a worker's record, the key of which is *url*; ValueError for a record that no
    worker writes.
    """
    if len(value) > LIMIT_RECORD_BYTES:
        raise ValueError(f"{len(value)} bytes, {LIMIT_RECORD_BYTES} are the limit")
    try:
        claims = decode_worker(value)
    except msgspec.DecodeError as error:
        raise ValueError(f"it is unreadable: {error}") from None
    if claims.url != url:
        raise ValueError(f"its key is {url[:80]!a} and its URL {claims.url[:80]!a}")
    check_origin(url)
    if not 0 <= claims.generation < 1 << 31:
        raise ValueError(f"generation {claims.generation}")
    for table, held in claims.tables.items():
        if not 0 < held.partitions <= LIMIT_PARTITIONS:
            raise ValueError(f"table {table[:80]!a} of {held.partitions} partitions")
        earlier = () if held.earlier is None else held.earlier.partitions
        claimed = (*held.active, *held.standby, *held.building, *held.waiting, *held.partial, *earlier)
        if any(not 0 <= each < held.partitions for each in claimed):
            raise ValueError(
                f"table {table[:80]!a} has partitions 0 to {held.partitions - 1}, and others are claimed"
            )
    return claims


def check_origin(url: str) -> None:
    """Refuse any URL but the origin of a worker: http or https, host and port, nothing else.

    >>> check_origin("http://[::1]:6066")
    >>> for url in ("http://a/b", "http://u:p@a:1", "file:///etc/passwd", "http://a:99999", "http://a b:1", "http://a\\r\\nb"):
    ...     try: check_origin(url)
    ...     except ValueError: pass
    ...     else: print(url)
    """
    parts = urlsplit(url)
    if (
        len(url) > LIMIT_URL
        or parts.scheme not in ("http", "https")
        or not parts.hostname
        or _UNFIT.search(url)
    ):
        raise ValueError(f"{url[:80]!a} is not a worker's URL")
    if (
        parts.path or parts.query or parts.fragment or "@" in parts.netloc or parts.port == 0
    ):  # .port raises ValueError itself
        raise ValueError(f"{url[:80]!a} is more than http(s)://host:port")
    URL(url)


_UNFIT = re.compile(r"[^\x21-\x7e]|[\\\"<>^`{|}]")


class Directory(Protocol):
    """The source from which a TableClient learns the owners of partitions."""

    @property
    def workers(self) -> Workers:
        """Return the claims as last read; empty at first."""
        ...

    async def refresh(self, timeout_s: float) -> None:
        """Update `workers` with all announcements from before this call.

        Raises BrokerError when that takes longer.
        """
        ...

    async def close(self) -> None: ...


class WorkersTopic:
    """The directory in Kafka: reads the workers topic from its beginning, once, then only new records. A look
    that takes too long, or whose callers have given up, keeps its position, and the next continues from
    there: so several short looks read a long topic.

    All of Kafka happens in one thread of its own, so that a broker that does not answer never holds up the
    event loop. Where the topic ends is asked for on a connection of its own: a broker answers the requests of
    one connection in turn, and on the consumer's there is nearly always a fetch that waits for news.
    """

    def __init__(self, settings: Settings, clock: Clock = system_clock) -> None:
        self._settings, self._clock = settings, clock
        self._topic = settings.workers_topic
        self._place = (self._topic, 0)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-workers-topic")
        self._closing = threading.Event()
        self._reader: LogReader | None = None
        self._admin: AdminClient | None = None
        self._topic_id = ""
        """Of the log that is read: a topic that is deleted and made again has another."""
        self._claims: dict[str, WorkerClaims] = {}
        self._switches: dict[str, Switch] = {}
        self._news = False
        """True if records were read that `workers` does not show yet."""
        self.ignored = 0
        """The number of the topic's records that no worker writes."""
        self.workers = Workers()

    async def refresh(self, timeout_s: float) -> None:
        if self._closing.is_set():
            raise ConfigError(f"the reader of the workers topic {self._topic} is closed")
        deadline_s = self._clock.monotonic_s() + timeout_s
        await asyncio.get_running_loop().run_in_executor(self._thread, self._read, deadline_s)

    async def close(self) -> None:
        """End the look that is under way and close the connections; a silent broker delays this by CLOSE_S at
        most.
        """
        if self._closing.is_set():
            return
        self._closing.set()
        closed = self._thread.submit(self._close)
        ended = self._thread.submit(closed.result)  # this wait can be given up, and the closing continues
        self._thread.shutdown(wait=False)
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(ended), CLOSE_S)

    # -- in the thread

    def _close(self) -> None:
        reader, self._reader, self._admin, self._topic_id = self._reader, None, None, ""
        if reader is not None:
            reader.close()

    def _read(self, deadline_s: float) -> None:
        """Update `workers`: here, since the caller may be gone by the time the records are read."""
        try:
            topic_id, end = self._told(deadline_s)
            if self._reader is not None and (
                topic_id != self._topic_id or end < self._reader.next[self._place]
            ):  # the topic was deleted and made again; not every broker has ids
                self._close()
            reader = self._reader or self._opened(topic_id, deadline_s)
            ends = {self._place: end}
            for message in reader.until(lambda: self._has_read(reader, ends), deadline_s=deadline_s):
                self._news = True
                self._learn(message.key(), message.value())
        except KafkaException as error:
            self._failed(error.args[0])
        except TimeoutError:
            self._failed(KafkaError(KafkaError._TIMED_OUT))
        else:
            if self._news:  # a large fleet takes a quarter of a second to sort, and is asked for each second
                self.workers = Workers(self._claims.values(), self._switches.values())
                self._news = False

    def _has_read(self, reader: LogReader, ends: Mapping[Place, int]) -> bool:
        self._refuse_closed()
        return reader.has_read(ends)

    def _opened(self, topic_id: str, deadline_s: float) -> LogReader:
        # An open transaction of a stranger must not hide who holds what.
        group = f"{self._settings.app}-workers-readers"
        config = self._settings.consumer(**reader_options(group, committed=False, wait_ms=500))
        left_s = self._left_s(deadline_s)
        skipper = Skipper(self._settings, config, clock=self._clock)
        consumer = make_reader(config, logger=logger)
        # A consumer that is assigned a topic it knows nothing of takes half a second to find its leader.
        with suppress(KafkaException):
            consumer.list_topics(self._topic, timeout=min(left_s, LIMIT_PRIMING_S))
        reader = LogReader(consumer, skipper, clock=self._clock)
        try:
            reader.assign({self._place: OFFSET_BEGINNING})
        except KafkaException:
            reader.close()
            raise
        self._reader, self._topic_id = reader, topic_id
        self._claims, self._switches, self._news = {}, {}, True
        return reader

    def _told(self, deadline_s: float) -> tuple[str, int]:
        """Return the topic's id and where it ends."""
        if self._admin is None:
            self._admin = make_admin(self._settings.client(), logger=logger)
        while True:
            left_s = max(self._left_s(deadline_s), REQUEST_AT_LEAST_S)
            described = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=left_s)
            # At once, of a topic that was there: a question about another one might create it.
            ended = self._asked_end(left_s) if self._topic_id else None
            try:
                told = self._result(described[self._topic], deadline_s)
                ended = ended or self._asked_end(left_s)
                return str(told.topic_id), int(self._result(ended, deadline_s).offset)
            except KafkaException as error:
                # A topic just created, or whose leader just changed. The client fetches metadata again and
                # finds it in a moment.
                if code_of(error) not in LEADER_MOVES:
                    raise
                time.sleep(min(_LEADER_WAIT_S, self._left_s(deadline_s)))

    def _asked_end(self, timeout_s: float) -> Future[ListOffsetsResultInfo]:
        assert self._admin is not None
        place = TopicPartition(*self._place)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return list_offsets(self._admin, {place: latest}, timeout_s=timeout_s)[place]

    def _result(self, asked: Future[A], deadline_s: float) -> A:
        """Wait for an answer in short turns: a directory that is closed waits no longer."""
        while True:
            self._refuse_closed()
            with suppress(FutureTimeoutError):
                return asked.result(min(_TURN_S, self._left_s(deadline_s)))

    def _refuse_closed(self) -> None:
        if self._closing.is_set():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return left_s

    def _learn(self, key: str | bytes | None, value: str | bytes | None) -> None:
        raw_key, raw = (
            (key.encode() if isinstance(key, str) else key or b""),
            (value.encode() if isinstance(value, str) else value),
        )
        try:
            url = raw_key[: LIMIT_URL * 4].decode()
            if url.startswith(SWITCH_KEY):
                self._learn_switch(url, raw)
                return
            if raw is None:
                self._claims.pop(url, None)
                return
            claims = read_claims(url, raw)
            if url not in self._claims and len(self._claims) >= LIMIT_WORKERS:
                raise ValueError(f"more than {LIMIT_WORKERS} workers")
        except ValueError as error:  # of which DecodeError and UnicodeDecodeError are kinds
            self.ignored += 1
            if self.ignored & (self.ignored - 1) == 0:  # the 1st, 2nd, 4th, 8th
                logger.warning(
                    "ignored %(ignored)d records of %(topic)s, which no worker writes; the last: "
                    "%(error).200s",
                    {"ignored": self.ignored, "topic": self._topic, "error": error},
                )
            return
        self._claims[url] = claims

    def _learn_switch(self, key: str, raw: bytes | None) -> None:
        table = key.removeprefix(SWITCH_KEY)
        if raw is None:
            self._switches.pop(table, None)
            return
        switch = read_switch(key, raw)
        if table not in self._switches and len(self._switches) >= LIMIT_SWITCHES:
            raise ValueError(f"switches of more than {LIMIT_SWITCHES} tables")
        self._switches[table] = switch

    def _failed(self, error: KafkaError) -> None:
        if error.code() not in NO_ANSWER:
            self._close()
        if error.code() in NO_TOPIC:
            self.workers = Workers()  # no worker has ever announced itself
            return
        raise BrokerError(
            f"cannot read the workers topic {self._topic} at {self._settings.bootstrap_servers}:"
            f" {error.str()}; check bootstrap.servers and the broker"
        )


class FixedDirectory:
    """A directory with given contents; for tests and for a single worker without announcements."""

    def __init__(self, claims: Iterable[WorkerClaims] = (), switches: Iterable[Switch] = ()) -> None:
        self.workers = Workers(claims, switches)

    def announce(self, claims: Mapping[str, WorkerClaims], switches: Iterable[Switch] = ()) -> None:
        """Replace the known claims, keyed by URL as on the topic."""
        self.workers = Workers(claims.values(), switches)

    async def refresh(self, timeout_s: float) -> None:
        """Nothing is newer than the given contents."""

    async def close(self) -> None:
        """Nothing is held."""
