"""A whole application without a broker: pipe records in, look at rows, timers, emits and refusals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

from holdfast.config.kafka_properties import suggest
from holdfast.core.engine.choices import Choice
from holdfast.core.engine.declared.chains import require_chains
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.graph import TopologyGraph
from holdfast.core.engine.declared.processor import (
    Headers,
    Processor,
    by_name,
    require_alike_steps,
    table_name,
)
from holdfast.core.engine.declared.retention import retentions
from holdfast.core.engine.declared.serdes import decode_with
from holdfast.core.engine.declared.sources import Sender, Source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.event_times import no_limits
from holdfast.core.engine.fold.stepping import Refused, Written
from holdfast.core.engine.fold.user_frames import user_frames
from holdfast.core.engine.origins import StepReached, is_mark, plain
from holdfast.core.streams.windowing.rows import WindowResult, windows_of
from holdfast.errors import Later, PaceError, StoppedError, TopologyError
from holdfast.testing.globals import KitGlobals
from holdfast.testing.logs import TopicLogs, TopicRecord, as_bytes
from holdfast.testing.marks import KitMarks
from holdfast.testing.notes import notes_if_taken
from holdfast.testing.paces import (
    AS_PIPED,
    Pace,
    Results,
    final_topics,
    other_paces,
    results_in,
    told_difference,
)
from holdfast.testing.refusals import RefusedRecord, refused_note, require_none
from holdfast.testing.runs import PartitionRun
from holdfast.testing.schemas import KitSchemas
from holdfast.testing.tracebacks import of_the_kit

__tracebackhide__ = of_the_kit
LIMIT_STEPS = 10_000
"""The most records that one piped record may set off: more is a circle that feeds itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRecord:
    """A record that is not folded yet, because what its fold needs is not there (`errors.Later`); None for a
    tick.

    *processor* is the name of the global where it is one of a global's topic.
    """

    processor: str
    record: TopicRecord | None
    needs: str
    reason: str


class Topology:
    """The processors of *app* over topics in memory, all with *partitions* partitions.

    *app* is what `create_app` returned, or a list of processors. Each `pipe` appends one record and folds all
    that follows from it: what a fold emits to the source of another processor is folded by that one too.

    Every record is folded by a worker that continues and by one that restarts before it, and the whole log is
    replayed in transactions of other sizes at the end of the `with` block (or by `check`). ImpureFoldError
    when the three differ: then the fold uses a clock, randomness or state of its own. All three run in one
    process, so what depends on its hash seed is not seen there: pytest runs the test in a second process,
    under another seed, and fails where the two differ (`holdfast.testing.hash_seeds`). What a fold raises
    Later for is `waiting`, and all that follows it in its partition, until it is folded by `go_on`. Where a
    processor is declared with `on_error="stop"`, what would be refused is in `stopped` until `skip` has it
    refused.

    UnseenRefusalsError where records were refused, or a partition is stopped, and the test has looked at
    neither `refused` nor `stopped`: a test for absence passes too easily over a fold that raised. An error
    that leaves the `with` block, such as a failed assertion, gets a note of them.

    **Paces.** If windows and joins in event time read several source partitions, the piped records are folded
    again at the end, in other orders: each source partition as a whole, one after the other; a record of each
    in turn; at random. Each keeps its own order. PaceError names two paces whose final results differ, which
    is so where a fold depends on the order of a window's records. Looking at results (`read`, `values`,
    `table`) ends a stretch, which records do not leave. *paces* False, `pipe_backlog` and ticks leave this
    out.

    Event times are held against append times (`Source(ahead=...)`) where the test gives these, by *start_ms*
    or by *at* of the first record.

    ChainError, as when a worker starts, where a processor is of another version than one it depends on.

    Serdes with schemas need no schema registry: until the end of the block, one in memory has all of theirs.

    >>> from holdfast import Processor, by_key
    >>> def count(rows, word, at_ms):
    ...     rows[word] = (rows.get(word) or 0) + 1
    >>> words = Processor(name="words", source="lines", decode=bytes.decode, fold=count, row=int)
    >>> with Topology([words]) as topology:
    ...     for word in ("to", "be", "to"):
    ...         _ = topology.pipe("lines", word, key=word)
    ...     topology.table("words")
    {'be': 1, 'to': 2}
    """

    def __init__(
        self, app: Any, *, partitions: int = 3, start_ms: int | None = None, paces: bool = True
    ) -> None:
        found = getattr(app, "processors", app)
        self.processors: dict[str, Processor[Any, Any]] = by_name(
            list(found.values()) if isinstance(found, Mapping) else found
        )
        if not self.processors:
            raise TopologyError("no processors: give a list of them, or what create_app returned")
        require_chains(list(self.processors.values()))
        retentions(self.processors.values())
        require_alike_steps(self.processors.values())
        self._schemas = KitSchemas(list(self.processors.values()))
        self._logs = TopicLogs(partitions)
        self._runs: dict[tuple[str, int], PartitionRun] = {}
        self._globals = KitGlobals(
            (each for processor in self.processors.values() for each in processor.reads), self._logs
        )
        self._readers: dict[str, list[Processor[Any, Any]]] = {topic: [] for topic in self._globals.topics}
        for each in self.processors.values():
            for topic in each.topics:
                self._readers.setdefault(topic, []).append(each)
        self._marks = KitMarks(self.processors.values(), partitions)
        self._held_globals = deque[TopicRecord]()
        self._global_cause: Later | None = None
        self._now_ms = 1_700_000_000_000 if start_ms is None else start_ms
        # Append times by default say nothing of event times: these are bounded if the first is given.
        self._has_limits = None if start_ms is None else True
        self._paces, self._stretches = paces, [list[TopicRecord]()]
        self._notes = notes_if_taken()
        self._refused: list[RefusedRecord] = []
        self._looked = False

    # -- in

    def pipe(
        self,
        source: str | Source[Any],
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        at: int | None = None,
        partition: int | None = None,
    ) -> TopicRecord:
        """Append a record to a topic, fold all that follows, and return it with its partition and offset.

        To a `Source`, key and value are what its serdes write; to a topic's name they are bytes, text, None,
        or a value that is written as JSON. Bytes are written as they are to either. *at* is its append time
        in ms, from which the following records continue; without it the time does not advance. Without
        *partition*, the key chooses as Java clients do; no key means partition 0.
        """
        topic = source.topic if isinstance(source, Source) else source
        if topic not in self._readers:
            raise TopologyError(
                f"no processor reads {topic!r:.200}; sources are {', '.join(sorted(self._readers))}"
                f"{suggest(topic, list(self._readers))}"
            )
        if isinstance(source, Source):
            self._schemas.know(source.serde)
            self._schemas.know(source.key)
        if at is not None:
            if type(at) is not int:
                raise TopologyError(f"at={at!r:.100}: an append time is a whole number of ms")
            self._now_ms = at
        if self._has_limits is None:
            self._has_limits = at is not None
        first = self._logs.append(
            topic,
            self._now_ms,
            key=_written("key", key, source),
            value=_written("value", value, source),
            headers=headers,
            partition=partition,
        )
        self._stretches[-1].append(first)
        self._fold_all(first)
        return first

    def pipe_backlog(
        self,
        source: str | Source[Any],
        values: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        at: int | None = None,
        partition: int | None = None,
    ) -> list[TopicRecord]:
        """Pipe *values* one after the other, each under the key that *key* gives: the pace at which a worker
        reads a backlog of one source. The records of this test are folded at no other pace.
        """
        self._paces = False
        return [
            self.pipe(source, value, key=None if key is None else key(value), at=at, partition=partition)
            for value in values
        ]

    def _fold_all(self, *first: TopicRecord) -> None:
        pending, steps = deque(first), 0
        while pending:
            record, steps = pending.popleft(), steps + 1
            if steps > LIMIT_STEPS:
                raise TopologyError(
                    f"{first[0]} set off more than {LIMIT_STEPS} records, the last {record}: these processors"
                    " feed themselves"
                )
            self._fold_globals(record)
            for processor in self._readers.get(record.topic, ()):
                pending.extend(self._fold(processor, record, record.partition))

    def _fold_globals(self, record: TopicRecord) -> None:
        if record.topic in self._globals.topics:
            self._held_globals.append(record)
            self._go_on_with_globals()

    def _go_on_with_globals(self) -> None:
        self._global_cause = None
        while self._held_globals:
            record = self._held_globals[0]
            try:
                refused = self._globals.apply(record, self._notes)
            except Later as later:
                self._global_cause = later
                return
            self._held_globals.popleft()
            for name, each in refused:
                self._refused.append(self._told(name, record, each))

    def _limits(self) -> AbstractContextManager[None]:
        return nullcontext() if self._has_limits else no_limits()

    def _fold(
        self, processor: Processor[Any, Any], what: TopicRecord | int, partition: int
    ) -> list[TopicRecord]:
        """Fold a record, or a tick, and records held before it; return the records appended for that."""
        run = self._run(processor.name, partition)
        was_held = bool(run.held)
        run.offer(what)
        return [] if was_held else self._go_on(processor, run)

    def _go_on(self, processor: Processor[Any, Any], run: PartitionRun) -> list[TopicRecord]:
        appended: list[TopicRecord] = []
        while run.held:
            first = run.held[0]
            with self._limits():
                changes = run.step()
            if run.cause is not None:
                break
            if changes is not None:
                if self._notes is not None:
                    self._notes.step(
                        processor.name,
                        run.partition,
                        first,
                        puts=changes.puts,
                        emits=changes.emits,
                        refused=changes.refused,
                    )
                record = None if isinstance(first, int) else first
                self._refused += [self._told(processor.name, record, each) for each in changes.refused]
                appended += self._emitted(processor, run.partition, changes)
        return appended

    def _emitted(self, processor: Processor[Any, Any], partition: int, changes: Written) -> list[TopicRecord]:
        into = partition if processor.in_place else None
        sent = [self._logs.emit(each, self._now_ms, into=into) for each in changes.emits]
        if changes.reached is not None:
            marks = self._marks.behind(processor, partition, changes.reached, sent)
            sent += [self._logs.emit(each, self._now_ms, into=None) for each in marks]
        return sent

    def settle(self) -> None:
        """Let time pass until nothing more happens: the source partitions of all steps, which are at the ends
        of their logs, hold no stream time back any more. What looks at results does so too.
        """
        if self._stretches[-1]:
            self._stretches.append([])
        while True:
            told = 0
            for step in self._marks.steps:
                marks = self._marks.settled(step, partial(self._reached_in, step))
                self._fold_all(*(self._logs.emit(each, self._now_ms, into=None) for each in marks))
                told += len(marks)
            if not told:
                return

    def _reached_in(self, processor: Processor[Any, Any], partition: int) -> StepReached | None:
        return self._run(processor.name, partition).reached(frozenset(range(len(processor.topics))))

    def tick(self, to: int) -> None:
        """Have the clock of every worker say that it is *to*, in ms, and fold all that follows: timers of the
        clock "tick", in processors of several sources. Times that came before change nothing.
        """
        self._paces = False
        if type(to) is not int:
            raise TopologyError(f"tick({to!r:.100}): a time is a whole number of ms")
        self._now_ms = max(self._now_ms, to)
        for name, partition in sorted(self._runs):
            self._fold_all(*self._fold(self.processors[name], to, partition))

    # -- what waits

    @property
    def waiting(self) -> list[WaitingRecord]:
        """Return of each partition that waits the record whose fold raised Later, in the order of names and
        partitions.
        """
        found = [
            _waiting(name, run.held[0], run.cause)
            for (name, _), run in sorted(self._runs.items())
            if isinstance(run.cause, Later)
        ]
        if self._global_cause is not None:
            record = self._held_globals[0]
            found.append(_waiting(self._globals.named(record.topic), record, self._global_cause))
        return found

    @property
    def refused(self) -> list[RefusedRecord]:
        """Return the refused records, in order; a test that expects none says so: `assert not
        topology.refused`.

        A test that reads this has looked: the end of the block raises no UnseenRefusalsError.
        """
        self._looked = True
        return self._refused

    @property
    def stopped(self) -> list[RefusedRecord]:
        """Return of each partition that is stopped (`on_error="stop"`) the record that would be refused."""
        self._looked = True
        return self._stopped()

    def _stopped(self) -> list[RefusedRecord]:
        found = []
        for (name, _), run in sorted(self._runs.items()):
            if isinstance(cause := run.cause, StoppedError):
                first = run.held[0]
                found.append(
                    RefusedRecord(
                        processor=name,
                        record=None if isinstance(first, int) else first,
                        stage=cause.stage,
                        error=cause.error,
                        reason=cause.reason,
                        frames=user_frames(cause.__context__ or cause),
                    )
                )
        return found

    def go_on(self) -> None:
        """Retry the waiting records, and fold all that follows: call it when their needs are there."""
        self._go_on_with_globals()
        for (name, _), run in sorted(self._runs.items()):
            self._fold_all(*self._go_on(self.processors[name], run))

    def skip(self, name: str | Processor[Any, Any], partition: int = 0) -> None:
        """Have a record refused that stops a partition, as `holdfast quarantine skip` does, and fold all that
        follows.
        """
        for run in self._of(name, partition):
            if not isinstance(run.cause, StoppedError):
                raise TopologyError(
                    f"{run.processor.name} partition {partition} is not stopped: see `stopped`"
                )
            run.allow()
            self._fold_all(*self._go_on(run.processor, run))

    def _run(self, name: str, partition: int) -> PartitionRun:
        place = (name, partition)
        if place not in self._runs:
            self._runs[place] = PartitionRun(self.processors[name], partition, self._globals)
        return self._runs[place]

    @staticmethod
    def _told(name: str, record: TopicRecord | None, refused: Refused) -> RefusedRecord:
        return RefusedRecord(
            processor=name,
            record=record,
            stage=refused.stage,
            error=refused.error,
            reason=refused.reason,
            frames=refused.frames,
        )

    # -- out

    def read(self, topic: str) -> list[TopicRecord]:
        """Return the records emitted to *topic* since this was last called, in order.

        TopologyError for a topic to which no processor emits. Everything is settled before, see `settle`.
        """
        if not any(topic in each.emits for each in self.processors.values()):
            declared = sorted({each for processor in self.processors.values() for each in processor.emits})
            raise TopologyError(
                f"no processor emits to {topic!r:.200}; emits are"
                f" {', '.join(declared) or 'none'}{suggest(topic, declared)}"
            )
        self.settle()
        return [_shown(each) for each in self._logs.unread(topic) if not is_mark(each.headers)]

    def values(self, sent: Stream[Any] | Sender[Any]) -> list[tuple[Any, Any]]:
        """Return (key, value) of what `read` gives of a stream or of a step's, as its serdes read it."""
        stream = sent if isinstance(sent, Stream) else getattr(sent, "to", sent)
        if not isinstance(stream, Stream):
            raise TopologyError(
                f"values({stream!r:.200}): only a Stream says what lies in its topic; use read for a topic's"
                " name"
            )
        return [
            (
                decode_with(stream.key, each.key, each.headers),
                decode_with(stream.serde, each.value, each.headers),
            )
            for each in self.read(stream)
        ]

    def table(
        self, name: str | Processor[Any, Any] | Global[Any], *, partition: int | None = None
    ) -> dict[str, Any]:
        """Return the rows of a processor by key, in the order of their keys; of one *partition* only, if
        named. Of a named table, say "processor.table"; a `Global` has the rows of all partitions.

        TopologyError when two partitions have rows of one key (the records' keys did not choose by it), or
        when `route` leads queries to another partition than the row's, and for a stateless step, which has
        none.
        """
        if isinstance(name, Global):
            if name.name not in self._globals.copies:
                raise TopologyError(f"no processor reads global {name.name}: declare reads=({name.name},)")
            return self._globals.rows(name.name)
        of = name.name if isinstance(name, Processor) else name
        if (known := self.processors.get(of)) is not None and known.stateless:
            raise TopologyError(
                f"{of} is a stateless step and has no table: read what it sends to {', '.join(known.emits)}"
            )
        self.settle()
        found: dict[str, Any] = {}
        homes: dict[str, int] = {}
        processor, _, table = name.partition(".") if isinstance(name, str) else (name.name, "", "")
        for run in self._of(processor, partition, table):
            for key, row in run.rows(table).items():
                self._check_route(run.processor, table, key, run.partition)
                if (other := homes.setdefault(key, run.partition)) != run.partition:
                    raise TopologyError(
                        f"{table_name(run.processor, table)} has rows of {key!r:.200} in partitions {other}"
                        f" and {run.partition}: records of one key must come into one partition; pipe them"
                        " with key=..., or look at one with table(..., partition=...)"
                    )
                found[key] = row
        return dict(sorted(found.items(), key=lambda each: each[0].encode()))

    def _check_route(self, processor: Processor[Any, Any], table: str, key: str, partition: int) -> None:
        route = processor.route_of(table)
        if route is None:
            return
        leads = route(key, self._logs.partitions)
        if leads is not None and leads != partition:
            raise TopologyError(
                f"{table_name(processor, table)} has the row of {key!r:.200} in partition {partition}, but"
                f" its route leads queries to {leads}: they would not find it; pipe its records with the key"
                " that the route expects, or mend the route"
            )

    def windows(self, name: str | Processor[Any, Any], key: str | None = None) -> list[WindowResult[Any]]:
        """Return the windows in a table of windows, of one *key* or of all, in the order of their row
        keys.
        """
        return [*windows_of(self.table(name).items(), key)]

    def timers(
        self, name: str | Processor[Any, Any], *, partition: int | None = None, clock: str = "append"
    ) -> dict[str, int]:
        """Return when each timer of a processor is due by a clock, "append", "event" or "tick", in ms, by
        key.
        """
        if clock not in ("append", "event", "tick"):
            raise TopologyError(f"clock {clock!r:.100}: there are append, event and tick")
        runs = self._of(name, partition)
        return {key: at_ms for run in runs for key, at_ms in run.timers(clock).items()}

    def choices(self, name: str | Processor[Any, Any], partition: int) -> list[Choice]:
        """Return the choices made of a partition: barriers and ticks, in order. None for a processor of one
        source.
        """
        return [choice for run in self._of(name, partition) for choice in run.choices]

    def _of(
        self, name: str | Processor[Any, Any], partition: int | None, table: str = ""
    ) -> Sequence[PartitionRun]:
        name = name.name if isinstance(name, Processor) else name
        if name not in self.processors:
            known = sorted(self.processors)
            raise TopologyError(
                f"no processor {name!r:.200}; there are {', '.join(known)}{suggest(name, known)}"
            )
        if table and table not in (tables := self.processors[name].tables):
            raise TopologyError(
                f"{name} has no table {table!r:.200}; it has"
                f" {', '.join(tables) or 'none besides its own'}{suggest(table, list(tables))}"
            )
        return [run for (of, at), run in sorted(self._runs.items()) if of == name and partition in (None, at)]

    def describe(self) -> str:
        """Return the graph of topics and processors as text, as `holdfast topology` prints it."""
        return TopologyGraph.of(list(self.processors.values())).text()

    # -- the end

    def check(self) -> None:
        """Replay every log; ImpureFoldError when it does not come to the same rows, emits and refusals."""
        with self._limits():
            for run in self._runs.values():
                run.replay()
        self._check_paces()

    def _check_paces(self) -> None:
        topics = final_topics(self.processors)
        if not self._paces or not topics or self._globals.topics or self.waiting or self.stopped:
            return
        wanted: Results | None = None
        for name, pace in other_paces(self._stretches):
            if wanted is None:
                self.settle()
                wanted = self._results(topics)
            found = self._at_pace(pace)._results(topics)
            if (told := told_difference(wanted, found)) is not None:
                raise PaceError(
                    f"final results differ between two paces of reading, {AS_PIPED} and {name}: {told}; does"
                    " a fold depend on the order of a window's records? Topology(..., paces=False) asks not"
                )

    def _at_pace(self, pace: Pace) -> Topology:
        again = Topology(self.processors, partitions=self._logs.partitions, paces=False)
        again._notes, again._has_limits = None, bool(self._has_limits)
        for stretch in pace:
            for each in stretch:
                again.pipe(
                    each.topic,
                    each.value,
                    key=each.key,
                    headers=each.headers,
                    at=each.at_ms,
                    partition=each.partition,
                )
            again.settle()
        return again

    def _results(self, topics: Sequence[str]) -> Results:
        return {topic: results_in(chain.from_iterable(self._logs.of(topic))) for topic in topics}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.check()
                if not self._looked:
                    require_none(self._refused, self._stopped())
            elif error is not None:
                self.note_refused(error)
        finally:
            self.close()

    def close(self) -> None:
        """Have serdes with schemas read again what they read before."""
        self._schemas.close()

    def note_refused(self, error: BaseException) -> None:
        """Add a note to *error* of the records that were refused, once: a row that a failed test misses is
        often one of theirs.
        """
        if self._refused and (note := refused_note(self._refused)) not in getattr(error, "__notes__", ()):
            error.add_note(note)


def _shown(record: TopicRecord) -> TopicRecord:
    headers = plain(record.headers)
    return record if headers is record.headers else replace(record, headers=headers)


def _waiting(name: str, what: TopicRecord | int, cause: Later) -> WaitingRecord:
    record = None if isinstance(what, int) else what
    return WaitingRecord(processor=name, record=record, needs=cause.needs, reason=str(cause))


def _written(what: str, given: Any, source: str | Source[Any]) -> bytes | None:
    """Return a key or value as a producer of *source* writes it."""
    if isinstance(given, bytes) or not isinstance(source, Source):
        return as_bytes(what, given)
    serde = source.key if what == "key" else source.serde
    written: bytes | None = serde.encode(given)
    return written
