"""The differences between the emits found and expected of one group. Each side is read in order, and neither
is kept.
"""

from __future__ import annotations

from array import array
from itertools import groupby, islice, zip_longest
from operator import attrgetter
from typing import NamedTuple

from holdfast.pipeline.verify.stored_emits import EmitGroup, EmitRun, StoredEmit

_PRIME, _BASE = (1 << 61) - 1, 0x9E3779B97F4A7C15 % ((1 << 61) - 1)


class EmitsApart(NamedTuple):
    """A record that was found, and the one expected instead; None for none."""

    found: StoredEmit | None
    expected: StoredEmit | None


def compared(group: EmitGroup, *, exact: bool, is_cut: bool) -> tuple[list[EmitsApart], int]:
    """Return the differences of a group, and the number of found records that lie before and were not
    compared; unless *exact*, these may be from earlier versions.

    Of a topic that *is_cut* the first records may be missing.
    """
    if not group.has_order:
        return _alone(group, exact=exact, is_cut=is_cut)
    if exact and not is_cut:
        return _in_order(group), 0
    return _from_the_end(group, exact=exact, is_cut=is_cut)


def compared_compacted(group: EmitGroup, *, exact: bool) -> tuple[list[EmitsApart], int]:
    """Return the differences of a group of a topic that is compacted, and the number of found records that
    were not compared.

    Compaction may have taken all records of a key but the last, and that too if it has no value. The rest
    must be in the order of those expected.
    """
    if not group.has_order:
        return _alone(group, exact=exact, is_cut=True)
    last, left = len(group.found) - 1, enumerate(group.expected)
    for at, have in enumerate(group.found) if exact else ():
        least = group.due - 1 if at == last else 0
        if not any(number >= least and have.body == want.body for number, want in left):
            return [
                EmitsApart(have, _at(group.expected, group.due - 1) if at == last and group.due else None)
            ], 0
    if (exact and last >= 0) or not group.due:
        return [], 0 if exact else last + 1
    newest = [*islice(group.expected, group.due - 1, None)]
    if last < 0:
        is_there = all(each.has_value for each in newest)
        return ([EmitsApart(None, newest[0])] if is_there else []), 0
    have = _at(group.found, last)
    is_newest = any(have.body == want.body for want in newest)
    return ([] if is_newest else [EmitsApart(have, newest[0])]), last


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
    """Return the number of expected emits to compare: as many as *found* ends with, and at least those
    that are due.
    """
    found, expected = group.found, group.expected
    for count in reversed(_likely(found, expected, group.due)):
        ending = islice(found, len(found) - count, None)
        if all(have.body == want.body for have, want in zip(ending, expected, strict=False)):
            return count
    return group.due


def _likely(found: EmitRun, expected: EmitRun, due: int) -> array[int]:
    """Return, in order, with how many of the expected ones, more than *due*, *found* probably ends.

    To compare each number of them by itself takes the square of their number where many have equal bodies. A
    polynomial hash of the elements before each of these positions is kept instead, from which that of each
    ending follows: both sides are read once.
    """
    most, hashes = min(len(found), len(expected)), array("Q")
    if most <= due:
        return hashes
    whole, first = 0, len(found) - most
    for at, each in enumerate(found):
        if first <= at < len(found) - due:
            hashes.append(whole)
        whole = (whole * _BASE + hash(each.body)) % _PRIME
    likely, beginning, power = array("Q"), 0, 1
    for count, each in enumerate(islice(expected, most), 1):
        beginning, power = (beginning * _BASE + hash(each.body)) % _PRIME, power * _BASE % _PRIME
        if count > due and (whole - hashes[most - count] * power) % _PRIME == beginning:
            likely.append(count)
    return likely


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
