"""A comparison as one HTML page, which needs nothing else: when keys parted, in which fields, and which they
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from holdfast.pipeline.comparing.compare import Comparison, PartedKey
from holdfast.pipeline.pages.page import document, table, time_of
from holdfast.pipeline.pages.plots import bars, steps

LISTED_KEYS = 1000
"""So many keys are listed; the JSON of the command has more."""


def comparison_page(found: Comparison) -> str:
    """Return the page."""
    title = f"{found.processor}: version {found.version} and {found.other} version {found.other_version}"
    return document(
        title, [_summary(found), _plots(found), _partitions(found), _keys(found.keys, found.left_out)]
    )


def _summary(found: Comparison) -> str:
    met = sum(each.met_again for each in found.partitions)
    said = (
        "Both end with the same rows and timers, and never differed."
        if found.equal
        else f"{found.apart} keys end with different rows; {met} more differed in between and are equal now."
    )
    other = [each.partition for each in found.partitions if not each.equal and not each.apart]
    if other:
        said += f" Partitions {', '.join(map(str, other))} differ in timers or stored bytes alone."
    holes = "".join(f"<p class=warn>{escape(each)}</p>" for each in found.holes)
    return (
        f"<p>{said} {found.records} records were folded by both in one pass, on"
        f" {escape(found.engine)}.</p>{holes}"
    )


def _plots(found: Comparison) -> str:
    if not found.keys:
        return ""
    parted = steps(
        "Keys that had parted, by the time of the record that parted them",
        [each.at_ms for each in found.keys],
    )
    return parted + (bars("Keys that differ, by field", found.fields) if found.fields else "")


def _partitions(found: Comparison) -> str:
    heads = (
        "partition",
        "records",
        "rows",
        "other rows",
        "refused",
        "other refused",
        "apart",
        "met again",
        "first topic",
        "first offset",
    )
    rows = [
        (
            each.partition,
            each.records,
            each.rows,
            each.other_rows,
            each.refused,
            each.other_refused,
            each.apart,
            each.met_again,
            each.first_topic,
            each.first_offset,
        )
        for each in found.partitions
    ]
    return "<h2>Partitions</h2>" + table(heads, rows)


def _keys(keys: Sequence[PartedKey], left_out: int) -> str:
    if not keys:
        return ""
    heads = (
        "partition",
        "table",
        "key",
        "topic",
        "first offset",
        "record's time",
        "now",
        "fields",
        "this version",
        "the other",
    )
    listed = sorted(keys, key=lambda each: (not each.apart, each.at_ms, each.partition, each.offset))[
        :LISTED_KEYS
    ]
    rows = [
        (
            each.partition,
            each.table,
            each.key,
            "a tick" if each.topic is None else each.topic,
            each.offset,
            time_of(each.at_ms),
            "apart" if each.apart else "equal again",
            ", ".join(each.fields),
            each.mine,
            each.theirs,
        )
        for each in listed
    ]
    more = f"<p>{len(keys) - len(listed)} more are in the JSON.</p>" if len(keys) > len(listed) else ""
    rest = f"<p>{left_out} more are counted and not told.</p>" if left_out else ""
    return "<h2>Keys</h2>" + table(heads, rows) + more + rest
