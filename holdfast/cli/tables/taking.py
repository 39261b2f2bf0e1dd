"""Takes the state of a Faust application over: the rows of a table's changelog, and the position up to which
its group had counted, become the first transaction of a processor's changelog, and what replays of it begin
with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.migrating import Beginning
from holdfast.core.engine.positions import Position, moved_to, stored_format
from holdfast.core.engine.state.codec import NOTHING_APPLIED, RowCodec, row_key
from holdfast.errors import ChangelogError, ConfigError
from holdfast.pipeline.bootstrap.beginnings import beginning, write_beginning
from holdfast.pipeline.topic import Span, TopicLog, TopicReader
from holdfast.pipeline.verify.table import LivePartition, read_live

RowOf: TypeAlias = Callable[[Any, Any], "tuple[str, Any] | None"]
"""Makes of a key and a value of the old table the key and the row of the new one; None for one that is left
out.
"""
REPARTITIONED = "-repartition"
LOOK_BACK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class OldTable:
    """A table of a Faust application: its name there, what makes rows of it, and whether that gets bytes.

    Otherwise it gets what Faust's codec `json` had written: text, numbers, lists, and the fields of models.
    The key of a window is `[key, [start, end]]`.
    """

    name: str
    rows: RowOf
    raw: bool = False

    def row(self, key: bytes, value: bytes) -> tuple[str, Any] | None:
        """Return the new key and row of a changelog record; whatever the function raises."""
        if self.raw:
            return self.rows(key, value)
        found = msgspec.json.decode(value)
        if isinstance(found, dict):
            found.pop("__faust", None)
        return self.rows(msgspec.json.decode(key), found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenPartition:
    """The first state of a partition. *done*: it has that already."""

    partition: int
    beginning: Beginning
    done: bool


class _Reached(NamedTuple):
    """The last record of a partition that the old group had read, -1 for none, and the append time that it
    had reached.
    """

    offset: int
    at_ms: int


class FaustTakeover:
    """Plans and writes the beginning of a processor's table. *group* is the old application's name; *table*
    None takes over its position alone, for a step or a table that begins empty.

    `plan` only reads; `write` needs all workers of both to have stopped.
    """

    def __init__(
        self, processor: Processor[Any, Any], settings: Settings, *, group: str, table: OldTable | None
    ) -> None:
        if processor.has_event_time:
            raise ConfigError(
                f"processor {processor.name} has event time, which Faust's positions do not tell: take the"
                " state over with a processor without on_event=, which the other then reads"
            )
        self._processor, self._settings, self._group, self._table = processor, settings, group, table

    def plan(self) -> list[TakenPartition]:
        """Return the first state of each partition; ConfigError or ChangelogError if it must not be taken
        over.
        """
        positions = self._positions()
        rows = self._rows(sorted(positions))
        return [
            self._taken(
                live, self._beginning(positions[live.partition], sorted(rows[live.partition].items()))
            )
            for live in read_live(self._processor, self._settings)
        ]

    def _beginning(self, position: Position, rows: list[tuple[bytes, bytes]]) -> Beginning:
        what = f"table {self._table.name} of" if self._table else "no table, at the place of"
        return beginning(self._processor, position, rows, f"{what} Faust application {self._group}")

    def _taken(self, live: LivePartition, found: Beginning) -> TakenPartition:
        done = bool(found.stored or found.base.applied != NOTHING_APPLIED) and (
            (live.marker, dict(live.stored)) == (found.position, dict(found.stored))
        )
        if not done and (live.stored or live.applied != NOTHING_APPLIED):
            raise ConfigError(
                f"table {self._processor.table} has a state already, up to offset {live.applied} of partition"
                f" {live.partition}: raise the processor's version, or empty it with `holdfast tables repair"
                f" {self._processor.name} --rebuild`"
            )
        if not done:
            self._require_undecided(live.partition)
        return TakenPartition(partition=live.partition, beginning=found, done=done)

    def _require_undecided(self, partition: int) -> None:
        """Raise ConfigError where the order of several sources was decided before: these choices may lie
        before the old application's position.
        """
        for topic in self._processor.choices_topics(self._settings.app):
            with TopicLog(self._settings, topic) as log:
                span = log.spans()[partition]
            if span.first < span.end:
                raise ConfigError(
                    f"{topic} partition {partition} has choices of an order in which processor"
                    f" {self._processor.name} has folded its sources already, and the old application's"
                    " position is none of that order: give the processor another name"
                )

    async def write(self, taken: TakenPartition) -> None:
        """Fence earlier writers, and write the beginning of a partition in one transaction, with it what
        replays begin with.
        """
        await write_beginning(self._processor, self._settings, taken.partition, taken.beginning)

    # -- positions

    def _positions(self) -> dict[int, Position]:
        """Return the position of each partition; a topic that the old group had not read begins at its
        beginning.
        """
        committed = BrokerGroups(self._settings, timeout_s=self._settings.request_timeout_s).committed(
            self._group
        )
        if not committed:
            raise ConfigError(
                f"group {self._group} has no committed offsets: name the old application, with its version,"
                " as in --from-app shop-v2"
            )
        self._require_drained(committed)
        reached = [self._reached(topic, committed) for topic in self._processor.topics]
        if len({len(each) for each in reached}) > 1:
            told = zip(self._processor.topics, reached, strict=True)
            counts = ", ".join(f"{topic} has {len(each)} partitions" for topic, each in told)
            raise ConfigError(f"{counts}: those of one table must be equal; see `holdfast topics check`")
        start = stored_format(self._processor).start
        return {at: _moved(start, [each[at] for each in reached]) for at in reached[0]}

    def _require_drained(self, committed: Mapping[tuple[str, int], int]) -> None:
        """Raise ConfigError while the old tables lack records that their sources' offsets count."""
        repartitioned = {topic for topic, _ in committed if topic.endswith(REPARTITIONED)}
        for topic in sorted(repartitioned.difference(self._processor.topics)):
            with TopicLog(self._settings, topic) as log:
                ends = log.ends(log.partitions())
            if left := sum(max(0, end - committed.get((topic, each), 0)) for each, end in ends.items()):
                raise ConfigError(
                    f"{left} records of {topic} are not in the old application's tables yet: run it until it"
                    " has taken them, and stop it"
                )

    def _reached(self, topic: str, committed: Mapping[tuple[str, int], int]) -> dict[int, _Reached]:
        """Return the last record of each partition of a source that the old group had read."""
        with TopicLog(self._settings, topic) as log:
            spans = log.spans()
        with TopicReader(self._settings, topic) as reader:
            return {
                each: _last_before(reader, each, span, committed.get((topic, each), 0))
                for each, span in spans.items()
            }

    # -- rows

    def _rows(self, partitions: list[int]) -> dict[int, dict[bytes, bytes]]:
        """Return the first rows of each partition, as stored."""
        out: dict[int, dict[bytes, bytes]] = {each: {} for each in partitions}
        codec, route = RowCodec[Any](self._processor.row), self._processor.route
        for partition, key, row in self._converted(len(partitions), routed=route is not None):
            place = route(key, len(partitions)) if route is not None else partition
            stored = row_key(key)
            if place not in out:
                raise ConfigError(
                    f"key {key!r:.200} of the new table has no partition by route=, which says {place!r:.80}"
                )
            if stored in out[place]:
                raise ConfigError(f"key {key!r:.200} of the new table is made of two keys of the old one")
            try:
                out[place][stored] = codec.encode(codec.canonical(row))
            except Exception as error:  # whatever an encoder says of a value that no row can hold
                raise ConfigError(
                    f"key {key!r}: {row!r:.200} is no {self._processor.row}: {error}"
                ) from error
        return out

    def _converted(self, partitions: int, *, routed: bool) -> Iterator[tuple[int, str, Any]]:
        """Yield (partition, key, row) of each row of the old table that is taken over."""
        table = self._table
        if table is None:
            return
        topic = f"{self._group}-{table.name}-changelog"
        for partition, state in self._old(topic).items():
            if not routed and partition >= partitions:
                raise ConfigError(
                    f"{topic} has more partitions than {self._processor.topics[0]}, which has {partitions}:"
                    f" give processor {self._processor.name} route="
                )
            for key, value in state.items():
                try:
                    made = table.row(key, value)
                except Exception as error:
                    raise ChangelogError(
                        f"{topic} partition {partition}: no row was made of key {key!r:.200}, value"
                        f" {value!r:.200}: {error!r}"
                    ) from error
                if made is not None:
                    if not isinstance(made, tuple) or len(made) != 2:
                        raise ConfigError(
                            f"{topic} partition {partition}: of key {key!r:.200} was made {made!r:.200}:"
                            " return a pair, the new key and its row, or None to leave it out"
                        )
                    yield partition, *made

    def _old(self, topic: str) -> dict[int, dict[bytes, bytes]]:
        """Return the last value of each key, by partition, of a changelog of Faust's."""
        with TopicLog(self._settings, topic) as log:
            spans = log.spans()
        out: dict[int, dict[bytes, bytes]] = {}
        with TopicReader(self._settings, topic) as reader:
            for partition, span in sorted(spans.items()):
                state = out[partition] = {}
                for records, _ in reader.records(partition, span):
                    for key, value in zip(records.keys, records.values, strict=True):
                        if value is None:
                            state.pop(key or b"", None)
                        else:
                            state[key or b""] = value
        return out


def _last_before(reader: TopicReader, partition: int, span: Span, committed: int) -> _Reached:
    """Return the last record of a partition before offset *committed*, and the highest append time of those
    near it.
    """
    end = min(committed, span.end)
    while end > span.first:
        first = max(span.first, end - LOOK_BACK)
        read = [records for records, _ in reader.records(partition, Span(first=first, end=end))]
        if read:
            return _Reached(read[-1].offsets[-1], max(max(each.times_ms) for each in read))
        end = first
    return _Reached(NOTHING_APPLIED, -1)


def _moved(start: Position, reached: Sequence[_Reached]) -> Position:
    """Return the position in sources of which each has *reached* a record. What comes next of several sources
    may be any: in which order the old application had read them is in its rows.
    """
    return moved_to(start, [each.offset for each in reached], [each.at_ms for each in reached])
