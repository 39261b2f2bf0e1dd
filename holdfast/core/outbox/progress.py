"""Each outbox's reported progress: the last sequence of every producer in every partition, from its leaders'
own progress records.

Compared with the ledger of a destination topic, it shows the records that a leader believes to have
published, and those that readers found.
"""

from __future__ import annotations

import msgspec

from holdfast.core.engine.declared.processor import Emits, Headers
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.sequences import distance
from holdfast.core.outbox.harvest import RowsProgress, SequencesProgress, decode_progress
from holdfast.core.outbox.row_marks import read_marks


class Reached(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A producer's last progress in one partition.

    *zombies* are older epochs' words, *backward* those of lower sequences.
    """

    epoch: int
    last_sequence: int
    offset: int
    at_ms: int
    zombies: int = 0
    backward: int = 0


class ProgressRecord(msgspec.Struct, frozen=True):
    """A progress record about sequences; None for one about something else."""

    progress: SequencesProgress | None
    offset: int


def decode(key: bytes | None, value: bytes | None, offset: int) -> ProgressRecord:
    """Return the sequences in a progress record; for inputs ("key", "value", "offset")."""
    found = decode_progress(key, value)
    return ProgressRecord(found if isinstance(found, SequencesProgress) else None, offset)


class NumbersAgain(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """When the numbers of a producer's rows were last found to begin again, and after which; 0 for never."""

    after: int
    at_ms: int


class NumbersRecord(msgspec.Struct, frozen=True):
    """A progress record about rows, of *producer*; *again* None where it does not say."""

    producer: str
    again: NumbersAgain | None


def decode_numbers(key: bytes | None, value: bytes | None, headers: Headers) -> NumbersRecord:
    """Return the row numbers in a progress record; for inputs ("key", "value", "headers")."""
    found = decode_progress(key, value)
    if not isinstance(found, RowsProgress):
        return NumbersRecord("", None)
    marks = read_marks(headers, sum(found.rows[1::2]))
    return NumbersRecord(
        found.producer, None if marks is None else NumbersAgain(marks.again_from, marks.again_ms)
    )


def fold_numbers(rows: Rows[NumbersAgain], record: NumbersRecord, at_ms: int) -> Emits:
    """Keep the last that each producer says. Emits nothing."""
    if record.again is not None:
        rows[record.producer] = record.again
    return None


def reached_key(producer: str, topic: str, partition: int) -> str:
    """Return the row key of a producer in a partition; a topic's name has no `/`, a producer's may."""
    return f"{topic}/{partition}/{producer}"


def fold(rows: Rows[Reached], record: ProgressRecord, at_ms: int) -> Emits:
    """Take in one progress record. What an older epoch says is counted and not believed. Emits nothing."""
    progress = record.progress
    if progress is None:
        return None
    for partition, sequence in progress.last:
        key = reached_key(progress.producer, progress.topic, partition)
        before = rows.get(key)
        if before is None:
            rows[key] = Reached(progress.epoch, sequence, record.offset, at_ms)
        elif progress.epoch < before.epoch:
            rows[key] = msgspec.structs.replace(before, zombies=before.zombies + 1)
        else:
            backward = before.backward + (distance(before.last_sequence, sequence) < 0)
            rows[key] = Reached(progress.epoch, sequence, record.offset, at_ms, before.zombies, backward)
    return None
