"""A comparison of emits that are all in memory: short enough to be seen to be right."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from holdfast.pipeline.verify.stored_emits import StoredEmit


class ListedGroup(NamedTuple):
    """Found and expected emits of one topic partition or key, and whether all of them have a key."""

    found: list[StoredEmit]
    expected: list[StoredEmit]
    has_key: bool


Pair = tuple[StoredEmit | None, StoredEmit | None]


def compared_in_memory(group: ListedGroup, *, exact: bool, is_cut: bool) -> tuple[list[Pair], int]:
    found, expected = group.found, group.expected
    due = sum(each.is_due for each in expected)
    if not group.has_key or len({each.part for each in expected}) > 1:
        return _alone(found, expected, exact=exact, is_cut=is_cut)
    if exact and not is_cut:
        bodies = [each.body for each in found], [each.body for each in expected]
        at = next(
            (at for at, (one, two) in enumerate(zip(*bodies, strict=False)) if one != two),
            min(map(len, bodies)),
        )
        have, want = found[at] if at < len(found) else None, expected[at] if at < len(expected) else None
        return [] if have is None and at >= due else [(have, want)], 0
    wanted = next(
        (
            expected[:count]
            for count in range(len(expected), due - 1, -1)
            if _ends_with(found, expected[:count])
        ),
        expected[:due],
    )
    for have, want in zip(reversed(found), reversed(wanted), strict=False):
        if have.body != want.body:
            return [(have, want)], 0
    older = len(found) - len(wanted)
    if older < 0 and not is_cut:
        return [(None, wanted[-len(found) - 1])], 0
    return [(found[older - 1], None)] if older > 0 and exact else [], max(0, older)


def _ends_with(found: list[StoredEmit], wanted: list[StoredEmit]) -> bool:
    start = len(found) - len(wanted)
    return start >= 0 and [each.body for each in found[start:]] == [each.body for each in wanted]


def _alone(
    found: list[StoredEmit], expected: list[StoredEmit], *, exact: bool, is_cut: bool
) -> tuple[list[Pair], int]:
    due = Counter(each.body for each in expected if each.is_due)
    may = Counter(each.body for each in expected if not each.is_due)
    strange = list[Pair]()
    for each in reversed(found):
        for left in (due, may):
            if left[each.body]:
                left[each.body] -= 1
                break
        else:
            strange.append((each, None))
    missing = [
        (None, next(each for each in expected if each.is_due and each.body == body))
        for body in due.elements()
    ]
    return [*(strange[-1:] if exact else ()), *([] if is_cut else missing[:1])], len(strange)
