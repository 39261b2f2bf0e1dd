"""The owners of claims in a period, and the times without one: by the rows of `claims.intervals`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from holdfast.pipeline.reporting.slices import DerivedRow

NOBODY = "nobody"


class Held(NamedTuple):
    """A part of the time in which one owner held a claim, in ms; *row* is the interval's."""

    from_ms: int
    to_ms: int
    row: DerivedRow

    @property
    def owner(self) -> str:
        return owner_of(self.row)


@dataclass(frozen=True, slots=True)
class ClaimTime:
    """One claim in the period: its owners, and from when on they are known.

    *idle_ms* is how long it had no owner, though it had been claimed before; *lost* how often an owner fell
    silent or was replaced.
    """

    name: str
    known_from_ms: int
    held: Sequence[Held]
    idle_ms: int
    lost: int

    @property
    def illness(self) -> tuple[int, int, int]:
        """Return the sort key of claims, the worst highest: time without an owner, owners lost, owners in
        all.
        """
        return self.idle_ms, self.lost, len(self.held)


def owner_of(row: DerivedRow) -> str:
    """Return group and client of an interval."""
    return f"{row['group_id']}/{row['client_id']}"


def ms_of(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def known_to_ms(rows: Iterable[DerivedRow], limit_ms: int) -> int | None:
    """Return up to when the rows describe claims: the last sign of life of any owner, at most *limit_ms*;
    None without one.
    """
    signs = [
        ms_of(each["held_until"] if each["ended_by"] == "released" else each["last_sign"]) for each in rows
    ]
    return min(limit_ms, max(signs)) if signs else None


def claim_times(rows: Iterable[DerivedRow], from_ms: int, to_ms: int) -> list[ClaimTime]:
    """Return the claims in the rows between *from_ms* and *to_ms*, the unhealthiest first."""
    by_claim = defaultdict[str, list[DerivedRow]](list)
    for row in rows:
        by_claim[f"{row['group_id']}/{row['topic']}-{row['topic_partition']}"].append(row)
    found = [_claim_time(name, some, from_ms, to_ms) for name, some in by_claim.items()]
    return sorted(found, key=lambda each: (*(-figure for figure in each.illness), each.name))


def _claim_time(name: str, rows: Sequence[DerivedRow], from_ms: int, to_ms: int) -> ClaimTime:
    ordered = sorted(rows, key=lambda row: (row["held_from"], row["epoch"], row["began_at"]))
    held = [each for row in ordered for each in _held(row, from_ms, to_ms)]
    # Before the first interval that reaches into the time nothing is known: the claim may not have been
    # there.
    known_ms = min(max(from_ms, ms_of(ordered[0]["held_from"])), to_ms)
    lost = sum(
        each["ended_by"] in ("expired", "replaced") and from_ms <= ms_of(each["held_until"]) < to_ms
        for each in ordered
    )
    return ClaimTime(name, known_ms, held, to_ms - known_ms - _covered(held), lost)


def _held(row: DerivedRow, from_ms: int, to_ms: int) -> Iterator[Held]:
    begin = max(from_ms, ms_of(row["held_from"]))
    end = to_ms if row["held_until"] is None else min(to_ms, ms_of(row["held_until"]))
    if begin < end:
        yield Held(begin, end, row)


def _covered(held: Iterable[Held]) -> int:
    """Return how much of the time the claim had an owner; a log without append times may have intervals that
    overlap.
    """
    total, upto = 0, 0
    for each in sorted(held, key=lambda one: one.from_ms):
        total += max(0, each.to_ms - max(upto, each.from_ms))
        upto = max(upto, each.to_ms)
    return total


def largest_owners(claims: Iterable[ClaimTime], limit: int) -> list[str]:
    """Return the owners that held most, by time."""
    held = defaultdict[str, int](int)
    for claim in claims:
        for each in claim.held:
            held[each.owner] += each.to_ms - each.from_ms
    return sorted(held, key=lambda owner: (-held[owner], owner))[:limit]


def held_over_time(
    claims: Sequence[ClaimTime],
    known_to: int,
    parts: Sequence[tuple[int, int]],
    owners: Sequence[str],
    others: str,
) -> Mapping[str, list[float]]:
    """Return the mean number of claims of each owner in each part of the time; the last series is of
    claims without an owner. After *known_to*, in ms, nothing is known.
    """
    found = {name: [0.0] * len(parts) for name in (*owners, others, NOBODY)}
    named = set(owners)
    for claim in claims:
        for at, share in _shares(claim.known_from_ms, known_to, parts):
            found[NOBODY][at] += share
        for each in claim.held:
            name = each.owner if each.owner in named else others
            for at, share in _shares(each.from_ms, each.to_ms, parts):
                found[name][at] += share
                found[NOBODY][at] -= share
    found[NOBODY] = [max(0.0, round(each, 6)) for each in found[NOBODY]]
    return {name: values for name, values in found.items() if name in named or any(values)}


def _shares(from_ms: int, to_ms: int, parts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, float]]:
    """Yield the parts that a time touches, and how much of each it fills."""
    begun, end = parts[0][0], parts[-1][1]
    width = max(1, end - begun)
    first = max(0, (from_ms - begun) * len(parts) // width - 1)
    for at in range(first, len(parts)):
        begin, until = parts[at]
        if begin >= to_ms:
            return
        if (common := min(to_ms, until) - max(from_ms, begin)) > 0:
            yield at, common / (until - begin)
