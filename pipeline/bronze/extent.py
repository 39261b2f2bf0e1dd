"""The readable offsets of a bronze table, and the end of a replay."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType

from holdfast.core.engine.fold.skips import OffsetRanges, kept
from holdfast.errors import ConfigError, LakeError, LostRecordsError
from holdfast.pipeline.bronze.lake import Landed
from holdfast.pipeline.topic import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """The end of a replay: after *offsets* (the last one folded, by partition; the rest goes to its end), or
    before the first record appended later than *at_ms*.

    Of several sources it is after *sources*: by partition the last offset folded of one source, or of some
    that the table has come to at once. With *at_most*, offsets after the end of the source ask for all of it.
    Whatever was folded before the next record of those is in the state, and a tick later than *at_ms* is not.
    """

    offsets: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    at_ms: int | None = None
    at_most: bool = False


def parse_until(text: str, option: str = "--until") -> Until:
    """Read what `--until` takes, or another *option*: last offsets by partition, or by partition and source,
    a time with its zone, or ms since the epoch.

    >>> parse_until("0:1500,1:20").offsets
    {0: 1500, 1: 20}
    >>> parse_until("0:orders:17,0:customers:3,1:orders:20").sources
    {0: {'orders': 17, 'customers': 3}, 1: {'orders': 20}}
    >>> parse_until("2024-05-01T12:00:00Z").at_ms, parse_until("1714564800000").at_ms
    (1714564800000, 1714564800000)
    """
    if re.fullmatch(r"\d+:-?\d+(,\d+:-?\d+)*", text):
        pairs = [each.split(":") for each in text.split(",")]
        offsets = {int(partition): int(offset) for partition, offset in pairs}
        if len(offsets) == len(pairs):
            return Until(offsets=offsets)
    if (sources := _sources(text)) is not None:
        return Until(sources=sources)
    if re.fullmatch(r"\d{10,}", text):
        return Until(at_ms=int(text))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ConfigError(
            f"{option} {text!r}: write the last offset of each partition (0:1500,1:20; of several sources"
            " 0:orders:17), a time with its zone (2024-05-01T12:00:00Z), or ms since the epoch"
        )
    return Until(at_ms=round((at - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000))


def _sources(text: str) -> dict[int, dict[str, int]] | None:
    """Read PARTITION:TOPIC:OFFSET,...; None for anything else, and where one is named twice."""
    out: dict[int, dict[str, int]] = {}
    for each in text.split(","):
        found = re.fullmatch(r"(\d+):([A-Za-z0-9._-]+):(-1|\d+)", each)
        if found is None:
            return None
        named = out.setdefault(int(found[1]), {})
        if found[2] in named:
            return None
        named[found[2]] = int(found[3])
    return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The offsets to read, by partition.

    *holes* describes in words the parts missing before or between them, empty if there are none.
    """

    spans: Mapping[int, Span]
    holes: tuple[str, ...] = ()


def check_holes(holes: Sequence[str], *, allow_holes: bool) -> None:
    """Refuse to fold logs with *holes*, unless holes are allowed."""
    if holes and not allow_holes:
        raise LostRecordsError(
            f"{'; '.join(holes)}. Give a lake that reaches further back (--lake DIR), or fold what is left:"
            " --allow-holes"
        )


def landed_of(landed: Landed | None, path: str) -> Landed:
    """Return the metadata of the last landing; LakeError where there was none."""
    if landed is None:
        raise LakeError(f"{path}: nothing was landed yet (`holdfast pipeline land`)")
    return landed


def extent_of_bronze(
    landed: Landed | None,
    path: str,
    app: str,
    *,
    skips: Mapping[int, OffsetRanges] | None = None,
    begin: Mapping[int, int] = MappingProxyType({}),
) -> Extent:
    """Return the offsets that a bronze table holds.

    Records that other applications than *app* skip are missing where they have landed; *skips* are its own,
    None: as far as the landings know. Records before the offsets in *begin*, by partition, are not needed.
    """
    landed = landed_of(landed, path)
    spans = {
        partition: Span(first=landed.begins.get(partition, 0), end=end)
        for partition, end in landed.end.items()
    }
    holes = [
        f"{path} partition {p} begins at offset {span.first}{_expired(landed, p)}"
        for p, span in sorted(spans.items())
        if span.first > begin.get(p, 0)
    ]
    holes += [
        f"{path} partition {p} lacks offsets {a} to {b - 1}"
        for p, ranges in sorted(landed.lost.items())
        for a, b in ranges
        if b > max(begin.get(p, 0), landed.begins.get(p, 0))
    ]
    holes += [
        f"{path} partition {p} lacks {count} rows that were removed from it by hand"
        for p, count in sorted(landed.removed.items())
    ]
    own = landed.skips(app) if skips is None else skips
    holes += [
        f"{path} partition {p} lacks offsets {first} to {last}, which the application that landed them skips"
        for p, ranges in sorted(landed.left_out.items())
        for first, last in ranges
        if last >= begin.get(p, 0) and kept(own.get(p, ()), first, last + 1)
    ]
    return Extent(spans=spans, holes=tuple(holes))


def _expired(landed: Landed, partition: int) -> str:
    gone = landed.expired.get(partition)
    if gone is None:
        return ""
    before = datetime.fromtimestamp(gone.before_ms / 1000, UTC).isoformat(timespec="seconds")
    return f" (its {gone.rows} rows from before {before} expired)"
