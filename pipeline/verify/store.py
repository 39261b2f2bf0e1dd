"""Verifies the served state: the replayed source, the changelog and the store that answers, all three as of
the store's own position.

`verify` alone compares a replay with the changelog, and so proves what a restore would give. What a worker
answers comes from its RocksDB, which a disk, a bug or a hand may have changed since. Its digest is asked of
the worker, through the web port that answers queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import position_in_reply
from holdfast.core.engine.state.codec import NOTHING_APPLIED, ROW_KINDS, combine_digests, place_of_row
from holdfast.core.engine.state.lost_heads import LostHeads
from holdfast.errors import HoldfastError
from holdfast.pipeline.folds.result_rows import FoldSummary, other_event_time
from holdfast.pipeline.folds.results import Replayed, told_bases
from holdfast.pipeline.folds.same_topics import require_same_topics
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.differing import first_apart
from holdfast.pipeline.verify.live_rows import apart
from holdfast.pipeline.verify.table import (
    LivePartition,
    kept_live,
    kind_of,
    last_changed,
    missing,
    refused_by,
    shown,
    upto,
)

LOOKS = 3
"""The number of looks at a partition whose changelog alone differs: a row that changed in between may have
been compacted away.
"""
STORE, CHANGELOG, REPLAY = "store", "changelog", "replay"


class Served(Protocol):
    """A worker's report of the state it serves, see `holdfast.core.engine.query_wire.InspectReply`."""

    @property
    def partition(self) -> int: ...
    @property
    def as_of_offset(self) -> int: ...
    @property
    def stream_ms(self) -> int: ...
    @property
    def changelog_next(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def position(self) -> bytes: ...


class Stores(Protocol):
    """The source of served states: `holdfast.clients.tables.inspecting` over the workers' web ports."""

    def partitions(self, processor: Processor[Any, Any]) -> int: ...

    def digest(self, processor: Processor[Any, Any], partition: int) -> Any: ...

    def stored(self, processor: Processor[Any, Any], found: Any) -> Iterator[tuple[bytes, bytes]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreDifference:
    """The first key of a partition at which the three differ. *differs* are those that do: one of them, or
    all three.

    Values are JSON for rows, a due time for timers, None where the key is missing.
    """

    partition: int
    kind: str
    key: str
    store: str | None
    changelog: str | None
    replayed: str | None
    differs: tuple[str, ...]
    changed_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorePartitionVerdict:
    """The verdict on one partition.

    *differs* names the one that does not agree with the other two, *cause* says it in words.
    """

    partition: int
    applied: int
    store_digest: str
    changelog_digest: str
    replayed_digest: str
    differs: tuple[str, ...] = ()
    cause: str | None = None
    difference: StoreDifference | None = None
    lost: LostHeads = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return self.cause is None

    def explain(self) -> str:
        """Return the difference, in words."""
        found = self.difference
        if found is None:
            return self.cause or "equal"
        where = f", last changed at source offset {found.changed_at}" if found.changed_at is not None else ""
        values = (
            f"store {found.store or 'none'}, changelog {found.changelog or 'none'}, replayed"
            f" {found.replayed or 'none'}"
        )
        return f"{self.cause}: {values}{where}"

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "partition": self.partition,
            "applied": self.applied,
            "equal": self.equal,
            "store_digest": self.store_digest,
            "changelog_digest": self.changelog_digest,
            "replayed_digest": self.replayed_digest,
            "lost": dict(self.lost),
            "differs": list(self.differs),
            "cause": self.cause,
            "difference": None if self.difference is None else asdict(self.difference),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreVerdict:
    """The verdict on a served table against its source."""

    processor: str
    version: int
    engine: str
    records: int
    partitions: tuple[StorePartitionVerdict, ...] = field(default_factory=tuple)
    skipped: int = 0
    holes: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    """The first states of partitions that did not begin empty."""

    @property
    def equal(self) -> bool:
        return all(each.equal for each in self.partitions)

    @property
    def partial(self) -> tuple[str, ...]:
        """Return, in words, the records that neither state can account for."""
        return missing(self.partitions, self.holes)

    @property
    def store_digest(self) -> str:
        return combine_digests((each.partition, each.store_digest) for each in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return {
            "processor": self.processor,
            "version": self.version,
            "engine": self.engine,
            "records": self.records,
            "skipped": self.skipped,
            "equal": self.equal,
            "bases": list(self.bases),
            "partial": list(self.partial),
            "store_digest": self.store_digest,
            "partitions": [each.document() for each in self.partitions],
        }


def verify_store(
    processor: Processor[Any, Any], settings: Settings, stores: Stores, options: ReplayOptions | None = None
) -> StoreVerdict:
    """Compare what the owners of *processor*'s partitions serve with the changelog and with a replay, each at
    the store's own offset.

    Workers may run at the same time. Raises a QueryError when a partition has no owner that answers.
    """
    asked = replace(
        options or ReplayOptions(),
        rows=False,
        transitions=False,
        of_key=None,
        partitions=None,
        out=None,
        allow_holes=True,
    )
    wanted: Iterable[int] = range(stores.partitions(processor))
    done: dict[int, StorePartitionVerdict] = {}
    first: Replayed | None = None
    for _ in range(LOOKS):
        served = {each: stores.digest(processor, each) for each in wanted}
        verdicts, replayed = _look(processor, settings, stores, asked, served)
        first = first or replayed
        done |= {each.partition: each for each in verdicts}
        wanted = [each.partition for each in verdicts if each.differs == (CHANGELOG,)]
        if not wanted:
            break
    partitions = tuple(done[each] for each in sorted(done))
    return StoreVerdict(
        processor=processor.name,
        version=processor.version,
        engine="" if first is None else first.engine,
        records=0 if first is None else first.records,
        partitions=partitions,
        skipped=0 if first is None else first.skipped,
        holes=() if first is None else first.holes,
        bases=() if first is None else told_bases(first.bases),
    )


def _look(
    processor: Processor[Any, Any],
    settings: Settings,
    stores: Stores,
    options: ReplayOptions,
    served: Mapping[int, Served],
) -> tuple[list[StorePartitionVerdict], Replayed]:
    if options.source == "bronze":
        require_same_topics(processor, settings, str(options.lake))
    ends = {at: each.changelog_next for at, each in served.items()}
    with kept_live(processor, settings, options.memory_bytes, ends) as live:
        changelog = {each.partition: each for each in live}
        positions = {
            at: position_in_reply(processor, each.position, each.as_of_offset, each.stream_ms)
            for at, each in served.items()
        }
        asked = replace(
            upto(processor, settings, options, positions),
            partitions=tuple(sorted(served)),
            refused=refused_by(changelog.values()),
        )
        replayed = replay(processor, settings, asked)
        summaries = {each.partition: each for each in replayed.partitions}
        verdicts = [
            _judge(processor, settings, stores, asked, served[at], changelog[at], summaries[at])
            for at in sorted(served)
        ]
        return verdicts, replayed


def _judge(
    processor: Processor[Any, Any],
    settings: Settings,
    stores: Stores,
    options: ReplayOptions,
    served: Served,
    changelog: LivePartition,
    replayed: FoldSummary,
) -> StorePartitionVerdict:
    verdict = StorePartitionVerdict(
        partition=served.partition,
        applied=served.as_of_offset,
        store_digest=served.digest,
        changelog_digest=changelog.digest,
        replayed_digest=replayed.digest,
        lost=changelog.lost,
    )
    values = {STORE: served.digest, CHANGELOG: changelog.digest, REPLAY: replayed.digest}
    differs = odd(values)
    if differs:
        verdict = replace(verdict, differs=differs, cause=f"{_said(differs)} differs")
        try:
            difference = _first(processor, settings, stores, options, served, changelog)
        except HoldfastError as error:
            return replace(
                verdict, cause=f"{verdict.cause}; its first key cannot be told ({error}): verify again"
            )
        return replace(
            verdict,
            cause=f"{difference.kind} {difference.key!r} differs in {_said(differs)}",
            difference=difference,
        )
    if replayed.applied != served.as_of_offset:
        why = (
            f"the store is at offset {served.as_of_offset}, but the last source record up to there is"
            f" {replayed.applied}"
        )
        return replace(verdict, differs=(STORE,), cause=why)
    applied = changelog.applied
    if applied not in (
        served.as_of_offset,
        NOTHING_APPLIED,
    ):  # a marker that a later one replaced may be compacted away
        why = (
            f"the store is at offset {served.as_of_offset}, but before {served.changelog_next} its changelog"
            f" is at {applied}"
        )
        return replace(verdict, differs=(CHANGELOG,), cause=why)
    if replayed.stream_ms != served.stream_ms:
        return replace(
            verdict,
            differs=(STORE,),
            cause=f"the store's stream time is {served.stream_ms}, replayed {replayed.stream_ms}",
        )
    at = position_in_reply(processor, served.position, served.as_of_offset, served.stream_ms)
    if (other := other_event_time(at, replayed)) is not None:
        return replace(verdict, differs=(STORE,), cause=f"the store's event time is {other}")
    return verdict


def odd(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the one of three values that does not agree with the other two; all, when no two agree; none, when
    all do.

    >>> odd({"store": 1, "changelog": 2, "replay": 2}), odd({"a": 1, "b": 2, "c": 3}), odd({"a": 1, "b": 1, "c": 1})
    (('store',), ('a', 'b', 'c'), ())
    """  # noqa: E501
    found = list(values.values())
    if all(each == found[0] for each in found):
        return ()
    alone = tuple(name for name, value in values.items() if found.count(value) == 1)
    return alone or tuple(values)


def _said(differs: Sequence[str]) -> str:
    return f"the {differs[0]}" if len(differs) == 1 else "all three"


def _first(
    processor: Processor[Any, Any],
    settings: Settings,
    stores: Stores,
    options: ReplayOptions,
    served: Served,
    changelog: LivePartition,
) -> StoreDifference:
    """Return the first key, in key order, at which the three differ."""
    alone = replace(options, partitions=(served.partition,), rows=True)
    stored, found = first_odd(
        apart(stores.stored(processor, served), changelog.stored.items()),
        first_apart(processor, settings, options, served.partition, changelog.stored),
    )
    (table, key), is_row = place_of_row(stored), stored[:1] in ROW_KINDS
    values = {name: shown(processor, stored, value) for name, value in found.items()}
    return StoreDifference(
        partition=served.partition,
        kind=kind_of(stored),
        key=key,
        store=values[STORE],
        changelog=values[CHANGELOG],
        replayed=values[REPLAY],
        differs=odd(found),
        changed_at=last_changed(processor, settings, alone, (table, key)) if is_row else None,
    )


def first_odd(
    served: tuple[bytes, bytes | None, bytes | None] | None,
    replayed: tuple[bytes, bytes | None, bytes | None] | None,
) -> tuple[bytes, dict[str, bytes | None]]:
    """Return the first key at which the three differ, with its three values.

    *served* is the first key at which store and changelog differ, with both values, and *replayed* that at
    which changelog and replay do. Before its first key, two are the same.
    """
    if served is None and replayed is None:
        raise HoldfastError("the digests differ and the rows do not: the state was not the same any more")
    if replayed is None or (served is not None and served[0] < replayed[0]):
        assert served is not None
        key, store, changelog = served
        return key, {STORE: store, CHANGELOG: changelog, REPLAY: changelog}
    key, changelog, made = replayed
    store = served[1] if served is not None and served[0] == key else changelog
    return key, {STORE: store, CHANGELOG: changelog, REPLAY: made}
