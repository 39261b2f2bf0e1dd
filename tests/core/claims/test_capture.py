"""A recorded run of a real fleet of the Go library: the compat view against the library's own answers, and
the two views compared.

tests/testdata/marshal-a.ndjson is a whole coordination topic (4 partitions, LogAppendTime, 510 s: claims,
kills, takeovers, releases, restarts); marshal-a.truth.ndjson.gz has the answers of observers of the library
in that time, marshal-a.arrival.ndjson when each record reached a consumer next to them.
"""

from __future__ import annotations

import gzip
import json
import os
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast.dev
from holdfast.core.claims import claim_keys, compat
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.claim_rows import AnomalyKind, Claim, GuardedRow
from holdfast.core.claims.compat import (
    CompatClaim,
    fold_compat,
)
from holdfast.core.claims.frames import (
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    coordination_partition,
    decode,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.engine.declared.processor import Emits, Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.state.rows import Rows
from tests.support.go_claims import compat_claimed, last_partition_claim, partition_claim
from tests.support.places import TESTDATA
from tests.support.scale import scaled

LAG_MS = 1200  # the running observer polls every 500 ms; its answer may be that old


class Record(NamedTuple):
    partition: int
    offset: int
    at_ms: int
    value: bytes


def lines(name: str) -> list[dict[str, Any]]:
    raw = (TESTDATA / name).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(raw) if name.endswith(".gz") else raw).splitlines()]


CAPTURE = [
    Record(each["partition"], each["offset"], each["timestamp_ms"], each["value"].encode())
    for each in lines("marshal-a.ndjson")
]
ARRIVED_MS = {
    (each["partition"], each["offset"]): each["arrival_ms"] for each in lines("marshal-a.arrival.ndjson")
}
ANSWERS = [each for each in lines("marshal-a.truth.ndjson.gz") if each["kind"] in ("sample", "mark", "final")]

CompatFold = Callable[[Rows[CompatClaim], Frame, int], Emits]
History = dict[str, list[tuple[int, CompatClaim | None]]]


def compat_history(fold: CompatFold) -> History:
    """Return, by claim, when its row became what; (0, None) first."""
    history: History = defaultdict(lambda: [(0, None)])
    rows: list[dict[str, CompatClaim]] = [{} for _ in range(4)]
    for record in CAPTURE:
        frame = decode(record.value)
        assert not isinstance(frame, ReleaseGroup)
        fold(cast(Rows[CompatClaim], rows[record.partition]), frame, record.at_ms)
        key = claim_key(frame.group_id, frame.topic, frame.partition)
        history[key].append((ARRIVED_MS[record.partition, record.offset], rows[record.partition].get(key)))
    return history


def told(claim: CompatClaim) -> dict[str, Any]:
    fields = msgspec.structs.asdict(claim)
    return {name.removesuffix("_s"): value for name, value in fields.items()}


def agrees(claim: CompatClaim | None, answer: dict[str, Any]) -> bool:
    now_s = answer["now_s"]
    return (
        told(partition_claim(claim, now_s)) == answer["claim"]
        and told(last_partition_claim(claim)) == answer["last_claim"]
        and compat_claimed(claim, now_s) is answer["claimed"]
    )


def compare(fold: CompatFold) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Return how many answers agree at their very moment and within the observer's lag, and those that
    disagree.
    """
    history = compat_history(fold)
    found: Counter[str] = Counter()
    wrong = []
    for answer in ANSWERS:
        steps = history[claim_key(answer["group"], answer["topic"], answer["partition"])]
        at = bisect_right(steps, answer["now_ms"], key=lambda step: step[0]) - 1
        earliest = bisect_right(steps, answer["now_ms"] - LAG_MS, key=lambda step: step[0]) - 1
        recent = range(at, earliest - 1 if answer["kind"] == "sample" else at - 1, -1)
        matching = next((index for index in recent if agrees(steps[index][1], answer)), None)
        if matching is None:
            wrong.append(answer)
        else:
            found["at once" if matching == at else "within the lag"] += 1
    return found, wrong


def test_the_compat_view_agrees_with_the_go_library_at_every_sample() -> None:
    found, wrong = compare(fold_compat)
    print(f"{len(ANSWERS)} answers compared: {dict(found)}, {len(wrong)} differ")
    assert wrong == []
    assert found == {"at once": 1380, "within the lag": 11}
    assert Counter(answer["kind"] for answer in ANSWERS) == {"sample": 1339, "mark": 13, "final": 39}


def wiping(rows: Rows[CompatClaim], frame: Frame, at_ms: int) -> None:
    """Planted fault: a new claim loses its offset, as in the library before July 2017."""
    before = rows.get(key := f"{frame.group_id}/{frame.topic}/{frame.partition}")  # type: ignore[union-attr]
    fold_compat(rows, frame, at_ms)
    after = rows.get(key)
    if after is not None and after is not before and not isinstance(frame, Heartbeat | ReleasingPartition):
        rows[key] = msgspec.structs.replace(after, current_offset=0)


def deaf(rows: Rows[CompatClaim], frame: Frame, at_ms: int) -> None:
    """Planted fault: releases are ignored."""
    if not isinstance(frame, ReleasingPartition):
        fold_compat(rows, frame, at_ms)


def loyal(rows: Rows[CompatClaim], frame: Frame, at_ms: int) -> None:
    """Planted fault: heartbeats are checked against the owner, which the Go library does not do."""
    if isinstance(frame, Heartbeat):
        before = rows.get(f"{frame.group_id}/{frame.topic}/{frame.partition}")
        if before is not None and before.instance_id != frame.instance_id:
            return
    fold_compat(rows, frame, at_ms)


@pytest.mark.parametrize("fault", [wiping, deaf, loyal])
def test_a_fold_with_a_fault_disagrees_with_the_go_library(fault: CompatFold) -> None:
    assert compare(fault)[1]


@pytest.mark.parametrize("stale_after_s", [60, 119, 121, 180])
def test_another_threshold_disagrees_with_the_go_library(
    stale_after_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "STALE_AFTER_S", stale_after_s)
    assert compare(fold_compat)[1]


# -- guarded against compat


class Difference(NamedTuple):
    """After *record*, the two views hold different things about its claim."""

    record: Record
    fields: str
    why: str | None


def parted(claim: Claim | None, go: CompatClaim | None) -> list[str]:
    """Return the differences of the views, in words; times of "never" and 0 are the same, offsets are
    not.
    """
    if claim is None or go is None:
        return [] if claim is None and go is None else [f"row {claim} / {go}"]
    pairs = [
        ("owner", f"{claim.client_id}.{claim.instance_id}", f"{go.client_id}.{go.instance_id}"),
        ("heartbeat", claim.heartbeat_at_s or 0, go.last_heartbeat_s),
        ("release", claim.released_at_s or 0, go.last_release_s),
        ("offset", claim.current_offset, go.current_offset),
    ]
    return [f"{name} {ours} / {theirs}" for name, ours, theirs in pairs if ours != theirs]


NOT_ALLOWED = {
    AnomalyKind.FOREIGN_HEARTBEAT: "D2: heartbeat of a client that is not the owner",
    AnomalyKind.FENCED_HEARTBEAT: "D17: heartbeat of an instance that was replaced",
    AnomalyKind.LATE_RELEASE: "a claim is released once",
    AnomalyKind.NEGATIVE_OFFSET: "an offset below 0 is none",
    AnomalyKind.BACKWARD_OFFSET: "an offset goes back by a reset only",
}


def explain(
    frame: Frame,
    at_ms: int,
    before: tuple[Claim | None, CompatClaim | None],
    after: tuple[Claim, CompatClaim],
) -> str | None:
    """Return the rule of PROTOCOL.md by which *frame* made the views part, or None when there is no such
    rule.
    """
    claim, go = after
    if claim.anomaly is not None and claim.anomaly != (before[0] and before[0].anomaly):
        return NOT_ALLOWED.get(
            claim.anomaly.kind, "still the consequence of the above" if parted(*before) else None
        )
    if frame.time_s != at_ms // 1000 and claim.frame_time_s == frame.time_s == go.last_heartbeat_s:
        return (
            "D3: the sender's clock is ahead"
            if frame.time_s > at_ms // 1000
            else "D4: time counts from the append"
        )
    if (
        [each.split()[0] for each in parted(claim, go)] == ["offset"]
        and claim.current_offset is None
        and go.current_offset == 0
    ):
        return "D16: no offset yet"
    if parted(*before):
        return "still the consequence of the above"
    return None


GuardedFold = Callable[[Rows[GuardedRow], Frame, int], Emits]


def differences(records: list[Record], fold: GuardedFold = fold_guarded) -> Iterator[Difference]:
    """Fold *records* both ways and yield each record after which the views hold different things about its
    claim.
    """
    guarded: dict[str, GuardedRow] = {}
    compat: dict[str, CompatClaim] = {}
    for record in records:
        frame = decode(record.value)
        assert not isinstance(frame, ReleaseGroup)
        key = claim_key(frame.group_id, frame.topic, frame.partition)
        before = cast(Claim | None, guarded.get(key)), compat.get(key)
        fold(cast(Rows[GuardedRow], guarded), frame, record.at_ms)
        fold_compat(cast(Rows[CompatClaim], compat), frame, record.at_ms)
        claim, go = cast(Claim | None, guarded.get(key)), compat.get(key)
        if parted(claim, go):
            why = (
                explain(frame, record.at_ms, before, (claim, go))
                if claim is not None and go is not None
                else None
            )
            yield Difference(record, ", ".join(parted(claim, go)), why)


def trouble() -> list[Record]:
    told = [
        line.split()
        for line in (TESTDATA / "claims-trouble.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return [Record(0, offset, int(at_s) * 1000, text.encode()) for offset, (at_s, text) in enumerate(told)]


@pytest.mark.parametrize(("name", "records"), [("marshal-a", CAPTURE), ("claims-trouble", trouble())])
def test_every_difference_between_the_views_is_listed_and_explained(name: str, records: list[Record]) -> None:
    """The list is tests/testdata/NAME.differences.txt; run with HOLDFAST_REWRITE=1 to write it again, then
    read what changed.
    """
    found = list(differences(records))
    assert [each for each in found if each.why is None] == []
    listed = "".join(
        f"{at.partition}:{at.offset}  {at.value.decode()}\n      {fields}  <- {why}\n"
        for at, fields, why in found
    )
    text = (
        "# After a record, what the guarded / the compat view holds about its claim, where they differ, and"
        f" why.\n{listed}"
    )
    path = TESTDATA / f"{name}.differences.txt"
    if os.environ.get("HOLDFAST_REWRITE"):
        path.write_text(text)
    assert path.read_text() == text
    print(
        f"{name}: {len(records)} records, {len(found)} differences:"
        f" {dict(Counter(each.why for each in found))}"
    )


def test_in_a_healthy_fleet_the_views_differ_only_in_offsets_not_announced_yet() -> None:
    assert Counter(each.why for each in differences(CAPTURE)) == {"D16: no offset yet": 13}
    rows: dict[str, GuardedRow] = {}
    for record in CAPTURE:
        fold_guarded(cast(Rows[GuardedRow], rows), decode(record.value), record.at_ms)
    held = [row for row in rows.values() if isinstance(row, Claim)]
    assert len(held) == 13
    assert all(claim.anomaly is None for claim in held), (
        "kills, takeovers, releases and fast reclaims are no anomalies"
    )
    assert sum(claim.epoch - 1 for claim in held) == 28


def test_the_log_in_trouble_meets_every_rule_by_which_the_views_part() -> None:
    whys = {each.why for each in differences(trouble())}
    assert set(NOT_ALLOWED.values()) < whys
    assert {why[:3] for why in whys if why is not None} >= {"D2:", "D3:", "D4:", "D16", "D17"}


def forgetful(rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
    """Planted fault: a guarded fold that does not keep the offset of a new owner's predecessor."""
    key = f"{frame.group_id}/{frame.topic}/{frame.partition}"  # type: ignore[union-attr]
    before = cast(Claim | None, rows.get(key))
    fold_guarded(rows, frame, at_ms)
    after = cast(Claim | None, rows.get(key))
    if before is not None and after is not None and after.epoch != before.epoch:
        rows[key] = msgspec.structs.replace(after, current_offset=1)


def test_a_difference_by_no_rule_is_not_explained_away() -> None:
    assert any(each.why is None for each in differences(CAPTURE, forgetful))


# -- through the framework


class DictStore(dict[bytes, bytes]):
    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(item for item in self.items() if item[0].startswith(prefix) and item[0] >= start))


GUARDED = Processor(
    name="claims",
    source="__marshal",
    decode=decode,
    fold=fold_guarded,
    row=GuardedRow,
    route=claim_keys.route,
)
COMPAT = Processor(
    name="claims-compat",
    source="__marshal",
    decode=decode,
    fold=fold_compat,
    row=CompatClaim,
    route=claim_keys.route,
)


def stored(processor: Processor[Any, Any], records: list[Record], cuts: list[int]) -> dict[bytes, bytes]:
    """Return the contents of the store after *records*, one transaction for each stretch between *cuts*."""
    store = DictStore()
    folder = Folder(processor, store)
    edges = sorted({0, len(records), *(cut % (len(records) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        part = records[start:stop]
        batch = Batch(
            [each.offset for each in part], [each.at_ms for each in part], ([each.value for each in part],)
        )
        changes = folder.fold([batch])
        assert changes is not None
        assert changes.refused == []
        assert changes.emits == []
        for key, value in changes.stored():
            if value is None:
                del store[key]
            else:
                store[key] = value
        folder.commit()
    return dict(store)


@settings(max_examples=scaled(25))
@given(partition=st.integers(0, 2), cuts=st.lists(st.integers(0, 300), max_size=30))
@pytest.mark.parametrize("processor", [GUARDED, COMPAT], ids=lambda each: each.name)
def test_the_capture_gives_the_same_bytes_however_it_is_cut_into_transactions(
    processor: Processor[Any, Any], partition: int, cuts: list[int]
) -> None:
    records = [each for each in CAPTURE if each.partition == partition]
    assert stored(processor, records, cuts) == stored(processor, records, [])


def test_every_frame_of_the_capture_lies_where_the_hash_of_its_topic_says() -> None:
    for record in CAPTURE:
        frame = decode(record.value)
        assert not isinstance(frame, ReleaseGroup)
        assert coordination_partition(frame.topic, 4) == record.partition


def test_the_capture_that_the_demo_loads_is_the_one_tested_here() -> None:
    shipped = Path(holdfast.dev.__file__).parent / "demo" / "processes" / "marshal-a.ndjson"
    assert shipped.read_bytes() == (TESTDATA / "marshal-a.ndjson").read_bytes()
