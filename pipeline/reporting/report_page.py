"""A report as one HTML page that needs nothing else, useful for a handful of partitions and for a thousand:
sums first, then the worst items.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

from holdfast.pipeline.derived.claim_intervals import INTERVALS
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS
from holdfast.pipeline.derived.group_moves import MOVES
from holdfast.pipeline.derived.lag_by_minute import BY_MINUTE
from holdfast.pipeline.derived.lag_tables import COMMITS
from holdfast.pipeline.derived.outbox_latency import LATENCY
from holdfast.pipeline.derived.producer_anomalies import ANOMALIES
from holdfast.pipeline.derived.quarantine_events import QUARANTINE
from holdfast.pipeline.pages.page import document, table, time_of
from holdfast.pipeline.pages.plots import bars
from holdfast.pipeline.pages.timelines import (
    HUES,
    LANE_LEFT,
    Dot,
    GanttLane,
    LaneBar,
    TimeAxis,
    dots,
    gantt,
    lines,
    parted,
    stacked,
)
from holdfast.pipeline.reporting.lag import MINUTE_MS, lags_over_time, total_over_time
from holdfast.pipeline.reporting.ownership import (
    NOBODY,
    ClaimTime,
    claim_times,
    held_over_time,
    known_to_ms,
    largest_owners,
    ms_of,
    owner_of,
)
from holdfast.pipeline.reporting.report import ReportedTime, lag_part_ms
from holdfast.pipeline.reporting.slices import LIMIT_ROWS, DerivedRow

LIMIT_LANES, LIMIT_DOTS, LIMIT_LISTED = 40, 2_000, 25
PARTS = 240
OTHERS = "others"
PERCENTILES = {"half of the rows within": "p50_ms", "95 % within": "p95_ms", "99 % within": "p99_ms"}
MOVED = ("assigned", "joined", "rebalanced", "left", "restarted", "unassigned")
CAUSES = {"expired": "bad", "replaced": "h2", "released": "h1", "reset": "h3"}


def report_page(found: ReportedTime) -> str:
    """Return the page."""
    title = f"holdfast from {time_of(found.from_ms)[:19]} to {time_of(found.to_ms)[:19]}"
    sections: Mapping[str, Callable[[ReportedTime, Sequence[DerivedRow]], str]] = {
        INTERVALS: _ownership,
        TAKEOVERS: _takeovers,
        BY_MINUTE: _lag,
        MOVES: _moves,
        LATENCY: _latency,
        ANOMALIES: _anomalies,
        QUARANTINE: _quarantine,
    }
    made = [
        (
            make(found, found.tables[name])
            if name in found.tables
            else _too_many(name, found.left_out[name])
            if name in found.left_out
            else _missing(name)
        )
        for name, make in sections.items()
    ]
    return document(title, made)


def _missing(name: str) -> str:
    topics = " Name topics (<code>--topics</code>), there and here." if name == BY_MINUTE else ""
    return (
        f"<h2>{escape(name)}</h2><p>This table was not derived: land its topic, then run <code>holdfast"
        f" pipeline derive</code>.{topics}</p>"
    )


def _too_many(name: str, rows: int) -> str:
    return (
        f"<h2>{escape(name)}</h2><p>Left out: this time has {rows:,} rows of it, and a page is made of"
        f" {LIMIT_ROWS:,} at most. Name a shorter time (<code>--from</code>, <code>--to</code>).</p>"
    )


def _axis(found: ReportedTime, left: int | None = None) -> TimeAxis:
    return (
        TimeAxis(found.from_ms, found.to_ms) if left is None else TimeAxis(found.from_ms, found.to_ms, left)
    )


# -- ownership


def _ownership(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    known_ms = known_to_ms(rows, found.to_ms)
    if known_ms is None or known_ms <= found.from_ms:
        return "<h2>Ownership</h2><p>Nothing is known of claims in this time.</p>"
    claims = claim_times(rows, found.from_ms, known_ms)
    largest = largest_owners(claims, HUES)
    hues = {**{owner: f"h{at}" for at, owner in enumerate(largest)}, OTHERS: "hx", NOBODY: "bad"}
    axis = _axis(found)
    series = held_over_time(claims, known_ms, parted(axis, PARTS), largest, OTHERS)
    ill = [each for each in claims if each.idle_ms or each.lost]
    said = (
        f"<p>{len(claims)} claims are known, {len(ill)} of them were without an owner for a while or lost"
        f" one. The lake tells of claims up to {time_of(known_ms)[:19]}.</p>"
    )
    parts = [
        "<h2>Ownership</h2>",
        said,
        stacked("Claims by who held them", axis, series, hues),
        _lanes(found, claims, known_ms, hues),
        _illest(ill),
        _owners(found, rows),
    ]
    return "".join(parts)


def _lanes(found: ReportedTime, claims: Sequence[ClaimTime], known_ms: int, hues: Mapping[str, str]) -> str:
    shown = claims[:LIMIT_LANES]
    lanes = [GanttLane(each.name, [*_bars(each, known_ms, hues)]) for each in shown]
    which = (
        f"the {len(shown)} least well of {len(claims)} claims" if len(claims) > len(shown) else "each claim"
    )
    return gantt(f"Who held {which}, and when", _axis(found, LANE_LEFT), lanes)


def _bars(claim: ClaimTime, known_ms: int, hues: Mapping[str, str]) -> Iterator[LaneBar]:
    yield LaneBar(claim.known_from_ms, known_ms, "nobody", f"{claim.name}: nobody")
    for held in claim.held:
        yield LaneBar(held.from_ms, held.to_ms, hues.get(held.owner, "hx"), _told(held.owner, held.row))


def _told(owner: str, row: DerivedRow) -> str:
    end = (
        "not over"
        if row["ended_by"] is None
        else f"{row['ended_by']} {time_of(ms_of(row['held_until']))[:19]}"
    )
    return (
        f"{owner} ({row['instance_id']}), epoch {row['epoch']}, from {time_of(ms_of(row['held_from']))[:19]},"
        f" {end}"
    )


def _illest(ill: Sequence[ClaimTime]) -> str:
    if not ill:
        return ""
    heads = ("claim", "seconds without an owner", "owners lost", "intervals", "last owner")
    rows = [
        (
            each.name,
            each.idle_ms // 1000,
            each.lost,
            len(each.held),
            each.held[-1].owner if each.held else None,
        )
        for each in ill[:LIMIT_LISTED]
    ]
    return f"<h3>Least well</h3>{table(heads, rows)}{_more(len(ill))}"


def _owners(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    """Return the ends of each owner's claims in the time, those that lost most first."""
    ends = defaultdict[str, Counter[str]](Counter)
    for row in rows:
        if row["ended_by"] is None:
            ends[owner_of(row)]["held"] += 1
        elif found.from_ms <= ms_of(row["held_until"]) < found.to_ms:
            ends[owner_of(row)][row["ended_by"]] += 1
    listed = sorted(
        ends.items(),
        key=lambda each: (-each[1]["expired"], -each[1]["replaced"], -each[1]["released"], each[0]),
    )
    heads = ("owner", "fell silent", "replaced by a new process", "given back", "not over")
    names = ("expired", "replaced", "released", "held")
    return (
        "<h3>Owners, by how their claims ended</h3>"
        + table(heads, [(owner, *(count[name] for name in names)) for owner, count in listed[:LIMIT_LISTED]])
        + _more(len(listed))
    )


def _more(count: int) -> str:
    return f"<p>{count - LIMIT_LISTED} more are in the table.</p>" if count > LIMIT_LISTED else ""


# -- takeovers


def _takeovers(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    if not rows:
        return "<h2>Takeovers</h2><p>There was none in this time.</p>"
    longest = sorted(rows, key=lambda row: (-row["duration_s"], row["taken"], _claim(row)))
    points = [
        Dot(
            ms_of(row["taken"]),
            row["duration_s"],
            CAUSES[row["cause"]],
            f"{_claim(row)}: {row['cause']}, {row['duration_s']} s",
        )
        for row in longest[:LIMIT_DOTS]
    ]
    counts = Counter(row["cause"] for row in rows)
    few = "" if len(rows) <= LIMIT_DOTS else f" (the {LIMIT_DOTS} longest of {len(rows)})"
    gaps = [row for row in rows if row["offset_gap"]]
    said = (
        f"<p>{len(rows)} claims changed hands:"
        f" {', '.join(f'{count} {cause}' for cause, count in counts.most_common())}. "
        f"{f'<span class=warn>{len(gaps)} went on at another offset than the owner before had reached.</span>' if gaps else 'All that told an offset went on where the owner before stood.'}</p>"  # noqa: E501
    )
    heads = ("claim", "cause", "taken", "seconds", "from", "to", "offset before", "offset after", "gap")
    listed = [*sorted(gaps, key=lambda row: -abs(row["offset_gap"]))[:10], *longest]
    listed = (
        [row for at, row in enumerate(listed) if row not in listed[:at]][:LIMIT_LISTED]
        if gaps
        else longest[:LIMIT_LISTED]
    )
    return "".join(
        (
            "<h2>Takeovers</h2>",
            said,
            dots(
                f"Seconds from the last sign of the owner before to the takeover{few}",
                _axis(found),
                points,
                CAUSES,
            ),
            "<h3>Longest, those with a gap first</h3>",
            table(heads, map(_takeover, listed)),
            _more(len(rows)),
        )
    )


def _claim(row: DerivedRow) -> str:
    return f"{row['group_id']}/{row['topic']}-{row['topic_partition']}"


def _takeover(row: DerivedRow) -> tuple[object, ...]:
    names = ("duration_s", "from_client", "to_client", "offset_before", "offset_after", "offset_gap")
    return (_claim(row), row["cause"], time_of(ms_of(row["taken"]))[:19], *(row[name] for name in names))


# -- lag


def _lag(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    lags = lags_over_time(rows, found.tables.get(COMMITS, ()))
    if not lags:
        return "<h2>Lag</h2><p>Nothing is known of groups in these topics in this time.</p>"
    behind = Counter[str]()
    for each in lags:
        behind[each.group] += each.worst
    groups = [group for group, _ in behind.most_common(HUES)]
    hues = {**{group: f"h{at}" for at, group in enumerate(groups)}, OTHERS: "hx"}
    part_ms = lag_part_ms(found.from_ms, found.to_ms)
    parts = [(begin, begin + part_ms) for begin in range(found.from_ms, found.to_ms, part_ms)]
    axis = TimeAxis(found.from_ms, parts[-1][1])
    series = total_over_time(lags, groups, OTHERS, parts)
    heads = (
        "group",
        "partition",
        "behind at the end",
        "most behind at the end of a part",
        "minutes since its last commit",
    )
    listed = [
        (each.group, f"{each.topic}-{each.partition}", each.last, each.worst, _minutes_of(each.silent_ms))
        for each in lags[:LIMIT_LISTED]
    ]
    return "".join(
        (
            "<h2>Lag</h2>",
            (
                f"<p>{len(lags)} partitions of groups are known, {sum(each.last > 0 for each in lags)} of"
                " them are behind at the end.</p>"
            ),
            _too_many(COMMITS, found.left_out[COMMITS]) if COMMITS in found.left_out else "",
            stacked("Records that groups were behind, by group", axis, series, hues),
            table(heads, listed),
            _more(len(lags)),
        )
    )


def _minutes_of(ms: int | None) -> int | None:
    return None if ms is None else ms // MINUTE_MS


# -- consumer groups


def _moves(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    if not rows:
        return "<h2>Consumer groups</h2><p>No partition moved in this time.</p>"
    groups = defaultdict[str, list[DerivedRow]](list)
    for row in rows:
        groups[row["group_id"]].append(row)
    most = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    listed = [
        (
            name,
            len(some),
            len({row["noted_at"] for row in some}),
            *(sum(row["cause"] == cause for row in some) for cause in MOVED),
        )
        for name, some in most[:LIMIT_LISTED]
    ]
    return "".join(
        (
            "<h2>Consumer groups</h2>",
            _by_time("Partitions that moved, by group", found, rows, lambda row: str(row["group_id"])),
            table(("group", "moves", "generations that moved any", *MOVED), listed),
            _more(len(groups)),
        )
    )


# -- outboxes


def _latency(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    if not rows:
        return "<h2>Outboxes</h2><p>No row was published in this time.</p>"
    worst = {name: defaultdict[int, int](int) for name in PERCENTILES}
    for row in rows:
        for name, column in PERCENTILES.items():
            at_ms = ms_of(row["minute"])
            worst[name][at_ms] = max(worst[name][at_ms], row[column])
    series = {name: sorted(values.items()) for name, values in worst.items()}
    groups = defaultdict[tuple[str, int], list[DerivedRow]](list)
    for row in rows:
        groups[row["outbox"], row["shard"]].append(row)
    slowest = sorted(groups.items(), key=lambda each: (-max(row["greatest_ms"] for row in each[1]), each[0]))
    listed = [(*key, *_waits(some)) for key, some in slowest[:LIMIT_LISTED]]
    heads = ("outbox", "shard", "rows", "mean ms", "worst p95", "worst p99", "longest", "leaders' epochs")
    hues = {name: f"h{at}" for at, name in enumerate(PERCENTILES)}
    return "".join(
        (
            "<h2>Outboxes</h2>",
            lines(
                "From a row's creation to its transaction, in ms: of each minute the slowest shard",
                _axis(found),
                series,
                hues,
            ),
            table(heads, listed),
            _more(len(groups)),
        )
    )


def _waits(rows: Sequence[DerivedRow]) -> tuple[int, ...]:
    """Return the number of rows of one shard, their mean wait, the worst minutes' percentiles, and the number
    of leaders.
    """
    count = sum(row["rows"] for row in rows)
    mean = round(sum(row["mean_ms"] * row["rows"] for row in rows) / count)
    worst = (max(row[column] for row in rows) for column in ("p95_ms", "p99_ms", "greatest_ms"))
    return (count, mean, *worst, len({row["epoch"] for row in rows}))


# -- anomalies


def _anomalies(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    if not rows:
        return "<h2>Producers' anomalies</h2><p>There was none in this time.</p>"
    groups = Counter((row["of_topic"], row["producer"], row["kind"]) for row in rows)
    missing = Counter[tuple[str, str, str]]()
    for row in rows:
        missing[row["of_topic"], row["producer"], row["kind"]] += row["missing"]
    listed = [(*key, count, missing[key] or None) for key, count in groups.most_common(LIMIT_LISTED)]
    return "".join(
        (
            "<h2>Producers' anomalies</h2>",
            _by_time(
                "Records that were not simply the next of their producer",
                found,
                rows,
                lambda row: str(row["kind"]),
            ),
            table(("topic", "producer", "kind", "records", "numbers missing"), listed),
            _more(len(groups)),
        )
    )


def _quarantine(found: ReportedTime, rows: Sequence[DerivedRow]) -> str:
    refused = [row for row in rows if row["event"] == "refused"]
    if not refused:
        return "<h2>Quarantine</h2><p>Nothing was set aside in this time.</p>"
    groups = defaultdict[tuple[str, str, str], list[DerivedRow]](list)
    for row in refused:
        groups[row["processor"], row["error"], row["reason"]].append(row)
    most = sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
    listed = [
        (
            *key,
            len(some),
            time_of(ms_of(some[0]["at"]))[:19],
            time_of(ms_of(some[-1]["at"]))[:19],
            _place(some[-1]),
        )
        for key, some in most[:LIMIT_LISTED]
    ]
    retried = len(rows) - len(refused)
    heads = ("processor", "error", "reason", "records", "first", "last", "for example")
    return "".join(
        (
            "<h2>Quarantine</h2>",
            f"<p>{len(refused)} records were set aside, {retried} were sent again.</p>",
            _by_time(
                "Records set aside, by processor and error",
                found,
                refused,
                lambda row: f"{row['processor']}: {row['error']}",
            ),
            bars("Records set aside, by processor", Counter(row["processor"] for row in refused)),
            table(heads, listed),
            _more(len(groups)),
        )
    )


def _place(row: DerivedRow) -> str:
    return f"{row['topic']}/{row['topic_partition']}/{row['offset']}"


def _by_time(
    caption: str, found: ReportedTime, rows: Iterable[DerivedRow], name_of: Callable[[DerivedRow], str]
) -> str:
    """Return the number of rows in each part of the time, by name, the rarer names together."""
    named = [(name_of(row), ms_of(row["at"])) for row in rows]
    largest = [name for name, _ in Counter(name for name, _ in named).most_common(HUES)]
    hues = {**{name: f"h{at}" for at, name in enumerate(largest)}, OTHERS: "hx"}
    series = {name: [0.0] * (PARTS // 4) for name in hues}
    for name, at_ms in named:
        part = (at_ms - found.from_ms) * (PARTS // 4) // (found.to_ms - found.from_ms)
        series[name if name in hues else OTHERS][min(max(part, 0), PARTS // 4 - 1)] += 1
    return stacked(
        caption, _axis(found), {name: values for name, values in series.items() if any(values)}, hues
    )
