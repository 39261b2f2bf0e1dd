"""The folds' results for each record of a test, in a form that another process can compare with its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.state.codec import (
    EVENT,
    ROW_KINDS,
    TICK,
    WAKE,
    decode_due,
    decode_untyped,
    place_of_row,
    text_key,
)
from holdfast.errors import ChangelogError
from holdfast.testing.logs import TopicRecord

LIMIT_STEPS = 10_000
"""The number of steps of one test that are noted; later ones are not compared."""
WHOLE_BYTES = 256
"""Longer values are noted by their beginning and a digest."""

_TIMERS = {WAKE: "append", TICK: "tick", EVENT: "event"}


class NotedStep(msgspec.Struct, frozen=True, array_like=True):
    """The changes by one record or tick in one partition of a processor, or of a global.

    *given* is a digest of all that came to the partition up to it: where two are equal, a fold has to do the
    same. Rows are in the order of their keys, emits by topic in the order they were sent; for a refused
    record there is its position and the kind of error, because its text may hold an address.
    """

    fold: str
    partition: int
    what: str
    given: bytes
    rows: list[tuple[bytes, bytes | None]]
    emits: list[tuple[str, list[str]]]
    refused: list[str]


@dataclass(slots=True)
class NotesOfTest:
    """The notes of each topology of one test, in the order in which they were made."""

    topologies: list[Notes] = field(default_factory=list)
    left: int = LIMIT_STEPS
    """The number of further steps that are noted."""

    @property
    def steps(self) -> list[list[NotedStep]]:
        """Return the steps of each topology that has any."""
        return [each.steps for each in self.topologies if each.steps]


_taken: list[NotesOfTest] = []


@contextmanager
def noting() -> Iterator[NotesOfTest]:
    """Give the notes of all topologies that are made within the context."""
    _taken.append(NotesOfTest())
    try:
        yield _taken[-1]
    finally:
        _taken.pop()


def notes_if_taken() -> Notes | None:
    """Return notes for a new topology, None unless they are wanted."""
    if not _taken:
        return None
    _taken[-1].topologies.append(made := Notes(_taken[-1]))
    return made


class Notes:
    """The steps of one `Topology`, as many as its test may have."""

    def __init__(self, test: NotesOfTest) -> None:
        self.steps: list[NotedStep] = []
        self._test = test
        self._given: dict[tuple[str, int], Any] = {}
        self._globals = blake2b(digest_size=16)

    def step(
        self,
        fold: str,
        partition: int,
        what: TopicRecord | int,
        *,
        puts: Iterable[tuple[bytes, bytes | None]],
        emits: Iterable[Emit],
        refused: Iterable[Refused],
    ) -> None:
        """Note what *what*, a record or the time of a tick, has changed."""
        if not self._test.left:
            return
        self._test.left -= 1
        given = self._given.setdefault((fold, partition), blake2b(digest_size=16))
        given.update(_as_bytes(what))
        by_topic: dict[str, list[str]] = {}
        for each in emits:
            by_topic.setdefault(str(each.topic), []).append(_short_text(each))  # a Stream is text, and more
        self.steps.append(
            NotedStep(
                fold=fold,
                partition=partition,
                what=f"tick {what}" if isinstance(what, int) else f"record {what}",
                given=given.digest() + self._globals.digest(),
                rows=sorted((key, _short(value)) for key, value in puts),
                emits=sorted(by_topic.items()),
                refused=[f"{each.topic}/{each.offset} {each.stage} {each.error}" for each in refused],
            )
        )

    def of_global(
        self,
        name: str,
        record: TopicRecord,
        puts: Iterable[tuple[bytes, bytes | None]],
        refused: Iterable[Refused],
    ) -> None:
        """Note what a record has changed in a global; all folds may see it from here on."""
        self.step(name, record.partition, record, puts=puts, emits=(), refused=refused)
        self._globals.update(_as_bytes(record))


def _as_bytes(what: TopicRecord | int) -> bytes:
    return (
        repr(what)
        if isinstance(what, int)
        else f"{what} {what.at_ms} {what.key!r} {what.value!r} {what.headers!r}"
    ).encode()


def _short(value: bytes | None) -> bytes | None:
    if value is None or len(value) <= WHOLE_BYTES:
        return value
    return value[:WHOLE_BYTES] + blake2b(value, digest_size=16).digest()


def _short_text(emit: Emit) -> str:
    text = repr(emit)
    if len(text) <= 2 * WHOLE_BYTES:
        return text
    return f"{text[: 2 * WHOLE_BYTES]}... {blake2b(text.encode(), digest_size=16).hexdigest()}"


@dataclass(frozen=True, slots=True)
class NotesCompared:
    """The comparison of two runs of one test: the first *difference*, None for none, and how many steps were
    *compared*.

    *parted* says that some partition was given other records in the second run, from which on it is unknown
    whether a fold is to blame.
    """

    difference: str | None
    compared: int
    parted: bool


def compare(one: Sequence[Sequence[NotedStep]], other: Sequence[Sequence[NotedStep]]) -> NotesCompared:
    """Hold the notes of a test's topologies against those of another run, up to where they were given the
    same.
    """
    compared, parted = 0, len(one) != len(other)
    for mine, theirs in zip(one, other, strict=False):
        others = _by_partition(theirs)
        for step in mine:
            again = next(others.get((step.fold, step.partition), iter(())), None)
            if again is None or again.given != step.given:
                others.pop((step.fold, step.partition), None)
                parted = True
            elif (found := _difference(step, again)) is not None:
                return NotesCompared(found, compared, parted)
            else:
                compared += 1
    return NotesCompared(None, compared, parted)


def _by_partition(steps: Sequence[NotedStep]) -> dict[tuple[str, int], Iterator[NotedStep]]:
    found: dict[tuple[str, int], list[NotedStep]] = {}
    for step in steps:
        found.setdefault((step.fold, step.partition), []).append(step)
    return {place: iter(of) for place, of in found.items()}


def _difference(step: NotedStep, again: NotedStep) -> str | None:
    where = f"{step.fold} partition {step.partition}: {step.what}"
    if step.rows != again.rows:
        return f"{where} gives other rows: {told_rows(step.fold, dict(step.rows), dict(again.rows))}"
    if step.emits != again.emits:
        sent, sends = dict(step.emits), dict(again.emits)
        topic = next(each for each in sorted({*sent, *sends}) if sent.get(each) != sends.get(each))
        was, now = sent.get(topic, []), sends.get(topic, [])
        pairs = enumerate(zip(was, now, strict=False))
        ends = (min(len(was), len(now)), (f"one of {len(was)}", f"one of {len(now)}"))
        at, (had_sent, has_sent) = next(((at, pair) for at, pair in pairs if pair[0] != pair[1]), ends)
        return f"{where} emits other records to {topic}: number {at} was {had_sent:.300}, is {has_sent:.300}"
    if step.refused != again.refused:
        return f"{where} refuses other records: was {step.refused!r:.300}, is {again.refused!r:.300}"
    return None


def told_rows(fold: str, had: Mapping[bytes, bytes | None], has: Mapping[bytes, bytes | None]) -> str:
    """Return the first key, in order, of which *had* and *has* differ, and what each says of it, decoded."""
    key = next(
        key for key in sorted({*had, *has}) if (key in had, had.get(key)) != (key in has, has.get(key))
    )
    return f"{_told_key(fold, key)} was {_told_value(had, key)}, is {_told_value(has, key)}"


def _told_key(fold: str, stored: bytes) -> str:
    if (clock := _TIMERS.get(stored[:1])) is not None:
        return f"the {clock} timer of {text_key(stored)!r:.200}"
    if stored[:1] in ROW_KINDS:
        table, key = place_of_row(stored)
        return f"{fold}{'.' if table else ''}{table}[{key!r:.200}]"
    return f"stored key {stored!r:.200}"


def _told_value(found: Mapping[bytes, bytes | None], key: bytes) -> str:
    if key not in found:
        return "not written"
    value = found[key]
    if value is None:
        return "removed"
    try:
        return f"{(decode_due if key[:1] in _TIMERS else decode_untyped)(value)!r:.300}"
    except ChangelogError:  # of a long one, only the beginning was noted
        return f"{value!r:.300}"
