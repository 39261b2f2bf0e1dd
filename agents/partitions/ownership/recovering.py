"""Recovers a table whose changelog has lost its records while its sources have theirs: the table is folded a
second time, and the results that it sent the first time are not sent again. Where that would give another
table, or it is unknown which results were sent, the worker does not begin.

A changelog loses records when its topic is deleted and made again, by DeleteRecords, and by a retention that
was not meant for it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.agents.partitions.ownership.beginnings import all_of
from holdfast.agents.partitions.types import RunInThread
from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.commit_notes import CommitNote, TableSent, shortened
from holdfast.core.engine.positions import counted
from holdfast.core.engine.state.codec import NOTHING_APPLIED
from holdfast.core.engine.state.lost_heads import LOST_HEADS, encode_lost_heads
from holdfast.core.engine.state.recovery import RECOVERY_FORMAT, Recovery
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import ChangelogError, TopicError
from holdfast.tables.partition import Partition

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SentResults:
    """The results that a table has sent, by its group: the last offset of each source, the number of the next
    choice, and the topics that still have them. *is_current* is true if its changelog was this one.
    """

    applied: tuple[int, ...]
    choices: int
    topics: tuple[str, ...]
    is_current: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The way a table begins again: with *recovery*; if *emptied*, from the beginning of its sources; *lost*
    are the sources of which its state may lack the records before these offsets.
    """

    recovery: Recovery
    emptied: bool
    lost: Mapping[str, int] | None = None


async def recover(
    parts: Sequence[Partition],
    notes: Mapping[Place, CommitNote],
    read: Callable[[list[Partition]], Awaitable[int]],
    thread: RunInThread,
    settings: Settings,
) -> int:
    """Begin again those of *parts* whose changelogs have lost records; they are fenced and restored, and know
    the ids of their sources. *notes* are those of the group's commits, *read* restores. Return the number of
    records read.

    Raises ChangelogError for a table that cannot be restored whole, or whose sent results are unknown.
    """
    asked = [part for part in parts if needs_a_look(part, notes)]
    if not asked:
        return 0
    places = {place for part in asked for place in part.places}
    found = await thread(Admin(settings).offsets, places)
    firsts = {place: low for place, (low, _) in found.items()}
    begun = [
        (part, how)
        for part in asked
        if (how := how_to_begin(part, sent_before(part, notes), firsts, partly=settings.accept_partial))
        is not None
    ]
    if not begun:
        return 0
    await all_of(
        part.owner.begin_again(
            how.recovery,
            settings.commit_timeout_s,
            emptied=how.emptied,
            notes=[] if how.lost is None else [(LOST_HEADS, encode_lost_heads(how.lost))],
        )
        for part, how in begun
    )
    for part, how in begun:
        _tell(part, how)
    return await read([part for part, _ in begun])


def needs_a_look(part: Partition, notes: Mapping[Place, CommitNote]) -> bool:
    """Return whether *part* may have lost state, by its changelog or by the notes of its group."""
    if part.is_blank or part.cut_at:
        return True
    sent = sent_before(part, notes)
    return sent is not None and _is_behind(part, sent)


def _is_behind(part: Partition, sent: SentResults) -> bool:
    here = part.position
    known = [part.owner.sent(topic).applied for topic in part.processor.topics]
    return any(now < then for now, then in zip(known, sent.applied, strict=True)) or (
        here.choices < sent.choices and part.owner.sent(part.processor.topics[0]).choices < sent.choices
    )


def sent_before(part: Partition, notes: Mapping[Place, CommitNote]) -> SentResults | None:
    """Return the results that *part* has sent, by the notes of its group; None without notes, or if they are
    of other logs of the same names.
    """
    ids = {} if part.owner.sources is None else part.owner.sources.topics
    told: list[TableSent | None] = []
    out: dict[str, str] = {}
    for place in part.places:
        note = notes.get(place)
        if note is None or note.topic != ids.get(place[0]):
            told.append(None)
            continue
        told.append(note.tables.get(part.processor.table))
        out |= note.out
    known = [each for each in told if each is not None]
    if not known:
        return None
    return SentResults(
        applied=tuple(NOTHING_APPLIED if each is None else each.applied for each in told),
        choices=max(each.choices for each in known),
        topics=tuple(
            sorted(topic for topic, now in part.owner.out.items() if out.get(topic) == shortened(now))
        ),
        is_current=all(each.changelog == shortened(part.changelog_id) for each in known),
    )


def how_to_begin(
    part: Partition, sent: SentResults | None, firsts: Mapping[Place, int], *, partly: bool
) -> Begin | None:
    """Return how *part* begins again, None where nothing is missing. *firsts* is where its sources begin.

    Raises ChangelogError where an operator has to decide that, unless it may begin *partly*.
    """
    if part.processor.migrate and part.is_blank:
        return None  # it says itself that it begins with a bootstrap
    if part.is_blank:
        return _begin_blank(part, sent, firsts, partly=partly)
    if part.cut_at:
        return _begin_cut(part, sent, firsts, partly=partly)
    if sent is None or not _is_behind(part, sent):
        return None
    return Begin(recovery=_recovery(part, sent), emptied=False)


def _begin_blank(
    part: Partition, sent: SentResults | None, firsts: Mapping[Place, int], *, partly: bool
) -> Begin | None:
    before = None if sent is not None and sent.is_current else part.owner.lost_before()
    cut = part.cut_at
    if sent is None:
        if before is None and not cut:
            return None  # nothing says that it was ever there
        if not partly:
            raise _refusal(
                part,
                "and its group has no committed position that tells up to where its results were sent",
                "which folds the sources again and sends all results again",
            )
        start = (NOTHING_APPLIED,) * len(part.processor.topics)
        return Begin(recovery=Recovery(RECOVERY_FORMAT, cut, start), emptied=True)
    if before is not None:
        applied = tuple(map(max, sent.applied, before))
        sent = SentResults(applied=applied, choices=sent.choices, topics=sent.topics, is_current=False)
    if counted(sent.applied) == NOTHING_APPLIED and not cut:
        return None
    if (lost := _lost_to(part, sent, firsts)) and not partly:
        raise _cut_refusal(part, lost)
    return Begin(recovery=_recovery(part, sent), emptied=True)


def _begin_cut(
    part: Partition, sent: SentResults | None, firsts: Mapping[Place, int], *, partly: bool
) -> Begin:
    position = part.position
    here = SentResults(
        applied=position.applied,
        choices=position.choices,
        topics=tuple(sorted(part.owner.out)),
        is_current=True,
    )
    if sent is not None:
        applied = tuple(map(max, sent.applied, here.applied))
        choices = max(sent.choices, here.choices)
        here = SentResults(applied=applied, choices=choices, topics=sent.topics, is_current=True)
    lost = _lost_to(part, here, firsts)
    if not lost and not part.has_base:
        return Begin(recovery=_recovery(part, here), emptied=True)
    if not partly:
        raise _cut_refusal(part, lost)
    # The remaining rows are kept, and reported as a part.
    heads = {
        topic: offset + 1
        for topic, offset in zip(part.processor.topics, position.applied, strict=True)
        if offset != NOTHING_APPLIED
    }
    return Begin(recovery=_recovery(part, here), emptied=False, lost={**part.partial, **heads})


def _lost_to(part: Partition, sent: SentResults, firsts: Mapping[Place, int]) -> dict[str, int]:
    """Return the sources that lack records that the table was folded from, with their first offsets. A step
    has no rows: it only needs the records whose results it has not sent.
    """
    stateless = part.processor.stateless
    return {
        place[0]: first
        for place, applied in zip(part.places, sent.applied, strict=True)
        if (first := firsts.get(place, 0)) > (applied + 1 if stateless else 0)
    }


def _recovery(part: Partition, sent: SentResults) -> Recovery:
    return Recovery(RECOVERY_FORMAT, part.cut_at, sent.applied, sent.choices, sent.topics)


def _refusal(part: Partition, why: str, partly: str) -> ChangelogError:
    gone = (
        f"begins at offset {part.cut_at}" if part.cut_at else "is empty, though the table was folded before"
    )
    return ChangelogError(
        f"{part.processor.table} partition {part.partition}: its changelog {part.changelog} {gone}, {why}."
        " Restore the changelog from a copy; or start once with `holdfast worker --accept-partial`, "
        f"{partly}; or run `holdfast reset`, which takes the application back to its beginning"
    )


def _cut_refusal(part: Partition, lost: Mapping[str, int]) -> ChangelogError:
    told = ", ".join(f"{topic} begins at offset {first}" for topic, first in sorted(lost.items()))
    why = told or "it began with rows of an earlier version, which are in no source"
    return _refusal(
        part,
        f"and {why}: rows of the table are in neither",
        "which goes on with what is left and tells readers that the table is partial",
    )


def require_whole_vector(part: Partition, notes: Mapping[Place, CommitNote]) -> None:
    """Raise TopicError for a blank table of several sources of which some were made again and others not: the
    choices that it made name offsets of the old ones.
    """
    ids = {} if part.owner.sources is None else part.owner.sources.topics
    told = {
        place[0]: note.topic == ids.get(place[0])
        for place in part.places
        if (note := notes.get(place)) is not None and part.processor.table in note.tables
    }
    if part.is_blank and not all(told.values()) and any(told.values()):
        other = min(topic for topic, same in told.items() if not same)
        raise TopicError(
            f"topic {other} was deleted and made again, and {part.changelog} has lost its records: the"
            f" choices of {part.processor.name} name offsets of the old topic; run `holdfast reset`, or give"
            " the processor another name"
        )


def _tell(part: Partition, how: Begin) -> None:
    logger.warning(
        "%(table)s partition %(partition)d: changelog %(changelog)s had lost records (it begins at"
        " %(first)d); %(what)s, and results up to %(offsets)s are not sent a second time",
        {
            "table": part.processor.table,
            "partition": part.partition,
            "changelog": part.changelog,
            "first": how.recovery.log_start,
            "what": "its sources are folded again"
            if how.emptied
            else "the table keeps the rows that are left",
            "offsets": dict(zip(part.processor.topics, how.recovery.applied, strict=True)),
        },
    )
