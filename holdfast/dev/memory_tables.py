"""Tables in memory, served by a real web port: for tests of code that queries tables, without Kafka and
without workers.

async with MemoryWorker(settings, [totals], partitions=2) as worker:
    worker.put(totals, 0, "ada", Total(count=3), offset=41)
    async with TableClient(settings, [totals], directory=worker.directory()) as tables:
        assert (await tables.get(totals, "ada")).value == Total(count=3)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.agents.metrics import Metrics
from holdfast.agents.serving import UNKNOWN
from holdfast.agents.web.server import OpenConsole, WebService
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.global_tables import Global, globals_by_name
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.merge.global_copies import GlobalCopy, GlobalView, key_in_copy, trimmed_at
from holdfast.core.engine.query_wire import EarlierClaims, TableClaims, WorkerClaims
from holdfast.core.engine.state.codec import NOTHING_APPLIED, RowCodec, key_in_table, row_key
from holdfast.tables.held_origins import HeldOrigin

T = TypeVar("T")


class MemoryReplica:
    """One partition of a table, whose state is whatever the test says; `waited_for` is set once a query
    waits for an offset.
    """

    def __init__(self, processor: Processor[Any, Any], partition: int, *, active: bool = True) -> None:
        self.processor, self.partition, self.active, self.serving = processor, partition, active, True
        self.applied, self.stream_ms, self.source_end, self.current_ms = NOTHING_APPLIED, -1, UNKNOWN, UNKNOWN
        self.changelog_next, self.changelog_end = 0, UNKNOWN
        self.is_earlier = False
        self.stalled: str | None = None
        self.partial: dict[str, int] = {}
        self.topic_ids: dict[str, str] = {}
        self.rows: dict[str, bytes] = {}
        self.named: dict[str, dict[str, bytes]] = {name: {} for name in processor.tables}
        self.held_back: list[HeldOrigin] = []
        self.waited_for = asyncio.Event()
        self._moved = asyncio.Condition()

    @property
    def late(self) -> tuple[int, int] | None:
        return None

    @property
    def role(self) -> str:
        return "earlier" if self.is_earlier else "active" if self.active else "standby"

    def of(self, table: str) -> dict[str, bytes]:
        """Return the stored rows of a named table, or of the processor's own."""
        return self.named[table] if table else self.rows

    def put(self, key: str, row: Any, table: str = "") -> None:
        """Set a row, or remove it with None."""
        if row is None:
            self.of(table).pop(key, None)
        else:
            self.of(table)[key] = RowCodec[Any](self.processor.row_of(table)).encode(row)

    async def advance(self, offset: int, stream_ms: int = -1) -> None:
        """Let the state reflect everything up to *offset*, and wake who waits for that."""
        self.applied, self.stream_ms = offset, max(self.stream_ms, stream_ms)
        await self.wake()

    async def wake(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    def get(self, key: str, table: str = "") -> bytes | None:
        return self.of(table).get(key)

    def get_many(self, keys: Sequence[str], table: str = "") -> list[bytes | None]:
        return [self.of(table).get(key) for key in keys]

    def scan(self, prefix: str, after: str | None, limit: int, table: str = "") -> list[tuple[str, bytes]]:
        above, rows = b"" if after is None else after.encode(), self.of(table)
        keys = (key for key in rows if key.startswith(prefix) and (after is None or key.encode() > above))
        return [(key, rows[key]) for key in sorted(keys, key=str.encode)[:limit]]

    def approximate_rows(self) -> int:
        return len(self.rows)

    def pin(self) -> MemoryState:
        return MemoryState(self)

    @property
    def offsets(self) -> dict[str, int]:
        return dict.fromkeys(self.processor.topics, self.applied)

    @property
    def source_ends(self) -> dict[str, int]:
        return dict.fromkeys(self.processor.topics, self.source_end)

    async def reached(self, wanted: int | Mapping[str, int], timeout_s: float) -> bool:
        offset = wanted if isinstance(wanted, int) else max(wanted.values(), default=NOTHING_APPLIED)
        self.waited_for.set()
        try:
            async with asyncio.timeout(timeout_s), self._moved:
                await self._moved.wait_for(lambda: self.applied >= offset or not self.serving)
        except TimeoutError:
            pass
        return self.applied >= offset


class MemoryState:
    """The state of a replica at a moment."""

    def __init__(self, replica: MemoryReplica) -> None:
        self.applied, self.stream_ms, self.changelog_next = (
            replica.applied,
            replica.stream_ms,
            replica.applied + 1,
        )
        self.offsets, self.position = (replica.applied,), b""
        self._items = sorted(
            (key_in_table(table, key), value)
            for table in ("", *replica.named)
            for key, value in replica.of(table).items()
        )

    def step(self, start: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        return [item for item in self._items if item[0] >= start][:limit]

    def close(self) -> None:
        self._items = []


class MemoryGlobal:
    """A copy of a global table, which holds what the test puts; *cause* is why it may not be read yet."""

    def __init__(self, table: Global[Any], partitions: int) -> None:
        self.table, self.copy, self._partitions = table, GlobalCopy(table), partitions
        self.cause: str | None = None
        self.lags: dict[int, int] = {}
        self.failures: dict[int, int] = {}
        self.topic_ids: dict[str, str] = {}
        self._moved = asyncio.Event()

    def put(self, key: str, row: Any, *, offset: int, partition: int = 0) -> None:
        """Set a row, or remove it with None, as the fold of the record at *offset* of *partition* would."""
        value = None if row is None else RowCodec[Any](self.table.row).encode(row)
        self.copy.store.apply([(key_in_copy(partition, row_key(key)), value)])
        self.copy.passed((*[-1] * partition, offset))
        self._moved.set()

    @property
    def applied(self) -> Mapping[int, int]:
        vector = self.copy.vector
        return {at: trimmed_at(vector, at) for at in range(max(self._partitions, len(vector)))}

    def unready(self) -> str | None:
        return self.cause

    def approximate_rows(self) -> int:
        return sum(1 for _ in self.copy.store.scan(b""))

    async def read(self, work: Callable[[GlobalView], T]) -> T:
        return work(self.copy.view())

    async def reached(self, wanted: Mapping[int, int], timeout_s: float) -> bool:
        def there() -> bool:
            return all(self.applied[partition] >= offset for partition, offset in wanted.items())

        try:
            async with asyncio.timeout(timeout_s):
                while not there():
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            pass
        return there()


class MemoryWorker:
    """A worker without Kafka: it serves the rows that it is given, at `settings.advertised_url`."""

    def __init__(
        self,
        settings: Settings,
        processors: Iterable[Processor[Any, Any]],
        *,
        partitions: int,
        active: Iterable[int] | None = None,
        standby: Iterable[int] = (),
        console: OpenConsole | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self.settings, self.url = settings, settings.advertised_url
        self._processors = {processor.name: processor for processor in processors}
        self._count = partitions
        self.replicas: dict[tuple[str, int], MemoryReplica] = {}
        self.owners: dict[tuple[str, int], str] = {}
        self.earlier_replicas: dict[tuple[str, int], MemoryReplica] = {}
        self.built: dict[tuple[str, int], str] = {}
        self.waits: set[tuple[str, int]] = set()
        self.cause: str | None = None
        self.metrics = Metrics(settings.app, clock)
        for name, processor in self._processors.items():
            for partition in range(partitions) if active is None else active:
                self.replicas[name, partition] = MemoryReplica(processor, partition)
                self.owners[name, partition] = self.url
            for partition in standby:
                self.replicas[name, partition] = MemoryReplica(processor, partition, active=False)
        self.globals = {
            name: MemoryGlobal(table, partitions)
            for name, table in globals_by_name(
                read for processor in self._processors.values() for read in processor.reads
            ).items()
        }
        self._web = WebService(settings, self, self.metrics, console=console, clock=clock)

    async def __aenter__(self) -> Self:
        await self._web.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._web.stop()

    def replica(self, processor: Processor[Any, Any], partition: int) -> MemoryReplica:
        return self.replicas[processor.name, partition]

    def keep(self, processor: Processor[Any, Any], partition: int) -> MemoryReplica:
        """Keep an earlier version of a partition."""
        replica = self.earlier_replicas[processor.name, partition] = MemoryReplica(
            processor, partition, active=False
        )
        replica.is_earlier = True
        return replica

    def put(
        self,
        processor: Processor[Any, Any],
        partition: int,
        key: str,
        row: Any,
        *,
        offset: int,
        table: str = "",
    ) -> None:
        """Set a row, of a named *table* or the processor's own, as the fold of the record at *offset*
        would.
        """
        replica = self.replica(processor, partition)
        replica.put(key, row, table)
        replica.applied = offset

    def claims(self, generation: int = 1) -> WorkerClaims:
        """Return the announcement of a worker with these tables."""
        tables = {
            name: TableClaims(
                version=processor.version,
                partitions=self._count,
                active=sorted(
                    at for (table, at), held in self.replicas.items() if table == name and held.active
                ),
                standby=sorted(
                    at for (table, at), held in self.replicas.items() if table == name and not held.active
                ),
                building=sorted(at for table, at in self.built if table == name),
                waiting=sorted(at for table, at in self.waits if table == name),
                earlier=self._earlier_claims(name),
            )
            for name, processor in self._processors.items()
        }
        return WorkerClaims(url=self.url, generation=generation, started_ms=0, at_ms=0, tables=tables)

    def _earlier_claims(self, name: str) -> EarlierClaims | None:
        version = self.earlier_version(name)
        kept = sorted(at for table, at in self.earlier_replicas if table == name)
        return None if version is None else EarlierClaims(version=version, partitions=kept)

    def directory(self) -> FixedDirectory:
        """Return a directory that knows this worker alone."""
        return FixedDirectory([self.claims()])

    # -- holdfast.agents.serving.Serving

    def tables(self) -> Mapping[str, Processor[Any, Any]]:
        return self._processors

    def global_tables(self) -> Mapping[str, MemoryGlobal]:
        return self.globals

    def partitions(self, table: str) -> int:
        return self._count

    def lookup(self, table: str, partition: int) -> MemoryReplica | None:
        return self.replicas.get((table, partition))

    def earlier(self, table: str, partition: int) -> MemoryReplica | None:
        return self.earlier_replicas.get((table, partition))

    def earlier_version(self, table: str) -> int | None:
        versions = [
            each.processor.version for (name, _), each in self.earlier_replicas.items() if name == table
        ]
        return versions[0] if versions else None

    def building(self, table: str, partition: int) -> str | None:
        return self.built.get((table, partition))

    def waiting(self, table: str, partition: int) -> bool:
        return (table, partition) in self.waits

    def owner(self, table: str, partition: int) -> str | None:
        return self.owners.get((table, partition))

    def unreadable(self) -> Collection[tuple[str, int]]:
        return ()

    def unready(self) -> str | None:
        return self.cause
