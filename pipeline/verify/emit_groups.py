"""Where the emits found at one place are not those expected there. Each side is read in order, and none of it is kept."""

from __future__ import annotations

from itertools import groupby, islice, zip_longest
from operator import attrgetter
from typing import NamedTuple

from holdfast.pipeline.verify.stored_emits import EmitGroup, EmitRun, StoredEmit


class EmitsApart(NamedTuple):
    """A record that was found, and the one expected in its place; None for none."""

    found: StoredEmit | None
    expected: StoredEmit | None


def compared(group: EmitGroup, *, exact: bool, is_cut: bool) -> tuple[list[EmitsApart], int]:
    """Return where a group differs, and how many found records lie before and were not compared; unless *exact*, these may be from earlier versions.

    Of a topic that *is_cut* the first records may be missing.
    """
    if not group.has_order:
        return _alone(group, exact=exact, is_cut=is_cut)
    if exact and not is_cut:
        return _in_order(group), 0
    return _from_the_end(group, exact=exact, is_cut=is_cut)


def _in_order(group: EmitGroup) -> list[EmitsApart]:
    for at, (have, want) in enumerate(zip_longest(group.found, group.expected)):
        if have is None or want is None or have.body != want.body:
            is_there = have is None and at >= group.due  # what came while the topic was read may be missing
            return [] if is_there else [EmitsApart(have, want)]
    return []


def _from_the_end(group: EmitGroup, *, exact: bool, is_cut: bool) -> tuple[list[EmitsApart], int]:
    """Compare from the end backwards: what lies before may be of earlier versions, or may be gone."""
    found, expected = group.found, group.expected
    wanted = _wanted(group)
    both = min(len(found), wanted)
    pairs = zip(
        islice(found, len(found) - both, None),
        islice(expected, wanted - both, wanted),
        strict=True,
    )
    last: EmitsApart | None = None
    for have, want in pairs:
        if have.body != want.body:
            last = EmitsApart(have, want)
    if last is not None:
        return [last], 0
    older = len(found) - wanted
    if older < 0 and not is_cut:
        return [EmitsApart(None, _at(expected, -older - 1))], 0
    if older > 0 and exact:
        return [EmitsApart(_at(found, older - 1), None)], older
    return [], max(0, older)


def _wanted(group: EmitGroup) -> int:
    """Return how many of the expected ones are compared: as many as *found* ends with, and at least those that are due."""
    found, expected = group.found, group.expected
    first = next(iter(expected), None)
    if first is None:
        return 0
    for at, each in enumerate(found):
        left = len(found) - at
        if left < max(group.due, 1):
            break
        if left > len(expected) or each.body != first.body:
            continue
        pairs = zip(found.scan(each.part, each.number), expected, strict=False)
        if all(have.body == want.body for have, want in pairs):
            return left
    return group.due


def _at(run: EmitRun, index: int) -> StoredEmit:
    return next(islice(run, index, None))


def _alone(group: EmitGroup, *, exact: bool, is_cut: bool) -> tuple[list[EmitsApart], int]:
    """Compare without order: of equal ones, the last are those of this version."""
    strange, missing = list[tuple[int, int]](), list[tuple[int, int]]()
    older = 0
    for _, equal in groupby(group.by_content(), attrgetter("digest")):
        found = due = expected = 0
        first_found: tuple[int, int] | None = None
        first_due: tuple[int, int] | None = None
        for each in equal:
            if each.is_found:
                found += 1
                first_found = first_found or (each.part, each.number)
                continue
            expected += 1
            if each.is_due:
                due += 1
                first_due = first_due or (each.part, each.number)
        if found > expected and first_found is not None:
            older += found - expected
            strange = [min([*strange, first_found])]
        elif found < due and first_due is not None:
            missing = [min([*missing, first_due])]
    apart = [EmitsApart(next(group.found.scan(*each)), None) for each in strange if exact]
    if not is_cut:
        apart += [EmitsApart(None, next(group.expected.scan(*each))) for each in missing]
    return apart, older
