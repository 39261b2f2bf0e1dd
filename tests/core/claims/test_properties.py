"""The guarded view over random logs: invariants, and a slow oracle that keeps no rows but rescans what
happened.

Each check is shown to fire on a fold with a planted fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from holdfast.core.claims.claim_rows import Anomaly, AnomalyKind, Claim, GuardedRow
from holdfast.core.claims.frames import (
    GIVES_BACK,
    UNMARKED,
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.engine.declared.processor import Emits
from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.engine.state.rows import Rows
from tests.support.scale import scaled

Fold = Callable[[Rows[GuardedRow], Frame, int], Emits]
Log = list[tuple[Frame, int]]

INSTANCES = [(client, f"{client}{number}") for client in ("a", "b") for number in (1, 2, 3)]
PAUSES_S = [0, 0, 1, 10, 29, 59, 60, 118, 119, 120, 121, 300]

# Made once: each is checked when it is first drawn from, which takes longer than the drawing.
A_START = st.sampled_from([0, 0, 0, 8, 1000])
A_LENGTH = st.integers(1, 30)
A_PAUSE = st.sampled_from(PAUSES_S)
A_SENDER = st.sampled_from(INSTANCES)
A_SKEW = st.sampled_from([0, 0, 0, -1, -30, -200, 1, 200])
A_PARTITION = st.sampled_from([0, 0, 0, 1])
AN_OFFSET = st.integers(-1, 12)
A_KIND = st.sampled_from(
    [
        Heartbeat,
        Heartbeat,
        Heartbeat,
        ClaimingPartition,
        ReleasingPartition,
        ClaimingMessages,
        ReleaseGroup,
    ]
)
AN_END = st.sampled_from([-5, 0, 1, 600])


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Draw a log of two claims: few senders with skewed clocks, pauses around the thresholds, append times
    from some record on.
    """
    stamped_from = draw(A_START)
    log: Log = []
    now_s = 10_000
    for number in range(draw(A_LENGTH)):
        now_s += draw(A_PAUSE)
        client, instance = draw(A_SENDER)
        time_s = now_s + draw(A_SKEW)
        partition = draw(A_PARTITION)
        offset = draw(AN_OFFSET)
        kind = draw(A_KIND)
        frame: Frame
        if kind is ReleaseGroup:
            frame = ReleaseGroup(time_s, instance, client, "g", now_s + draw(AN_END))
        elif kind is ClaimingPartition:
            frame = ClaimingPartition(time_s, instance, client, "g", "t", partition)
        else:
            moved = cast(type[Heartbeat] | type[ReleasingPartition] | type[ClaimingMessages], kind)
            version = GIVES_BACK if kind is ReleasingPartition and time_s % 2 else UNMARKED
            frame = moved(time_s, instance, client, "g", "t", partition, offset, version)
        log.append((frame, now_s * 1000 + 500 if number >= stamped_from else -1))
    return log


def folded(log: Log, fold: Fold, state: dict[str, GuardedRow] | None = None) -> dict[str, GuardedRow]:
    rows = {} if state is None else state
    for frame, at_ms in log:
        fold(cast(Rows[GuardedRow], rows), frame, at_ms)
    return rows


class Step(NamedTuple):
    """One frame about claim 0: the row before and after, and the log time by which it was judged."""

    before: Claim | None
    frame: Frame
    now_s: int
    after: Claim | None


def steps(log: Log, fold: Fold) -> list[Step]:
    state: dict[str, GuardedRow] = {}
    found = []
    for frame, at_ms in log:
        before = cast(Claim | None, state.get("g/t/0"))
        fold(cast(Rows[GuardedRow], state), frame, at_ms)
        if not isinstance(frame, ReleaseGroup) and frame.partition == 0:
            known_s = [] if before is None else [before.heartbeat_at_s or before.released_at_s or 0]
            now_s = at_ms // 1000 if at_ms >= 0 else max([frame.time_s, *known_s])
            found.append(Step(before, frame, now_s, cast(Claim | None, state.get("g/t/0"))))
    return found


# -- what must hold, as checks that take the fold, so that each can be given a faulty one


def at_most_one_owner_is_live(log: Log, fold: Fold) -> None:
    """An owner holds the claim for 120 s from its last heartbeat, unless it releases it or a newer instance
    of its own client replaces it. This book-keeping never looks at the claim's own status: by
    it, no grant comes before the last one ended."""
    owner: tuple[str, str] | None = None
    held_until_s = 0
    for before, frame, now_s, after in steps(log, fold):
        if after is None:
            continue
        shown = (after.client_id, after.instance_id)
        if owner is None or shown != owner or (before is not None and after.epoch != before.epoch):
            assert owner is None or owner[0] == shown[0] or now_s >= held_until_s, (
                f"{shown} at {now_s}, {owner} until {held_until_s}"
            )
            assert (frame.client_id, frame.instance_id) == shown, "only its own frame makes an owner"
            owner, held_until_s = shown, now_s + 120
        elif isinstance(frame, Heartbeat) and (frame.client_id, frame.instance_id) == owner:
            held_until_s = now_s + 120
        if after.heartbeat_at_s is None:  # over, though append times may begin after the release
            held_until_s = 0


def strangers_move_nothing_while_the_owner_is_live(log: Log, fold: Fold) -> None:
    for before, frame, now_s, after in steps(log, fold):
        if before is None or before.heartbeat_at_s is None or now_s - before.heartbeat_at_s >= 120:
            continue
        if frame.client_id != before.client_id or frame.instance_id in before.fenced:
            assert after is not None
            assert msgspec.structs.replace(after, anomaly=before.anomaly) == before
            noted = after.anomaly != before.anomaly
            assert noted != isinstance(frame, ClaimingPartition), "everything but a lost race is noted"


def rows_make_sense(log: Log, fold: Fold) -> None:
    stamped = all(at_ms >= 0 for _, at_ms in log)
    for before, _, _, after in steps(log, fold):
        if after is None:
            assert before is None
            continue
        assert (after.heartbeat_at_s is None) is not (after.released_at_s is None)
        assert after.epoch - (0 if before is None else before.epoch) in (0, 1)
        assert after.instance_id not in after.fenced
        assert len(set(after.fenced)) == len(after.fenced) <= 8
        assert after.current_offset is None or after.current_offset >= 0
        assert after.proposed_offset is None or after.proposed_offset > (
            -1 if after.current_offset is None else after.current_offset
        )
        if before is not None:
            assert after.current_offset is not None or before.current_offset is None, (
                "a known offset is never forgotten"
            )
            if stamped:
                assert (after.heartbeat_at_s or after.released_at_s or 0) >= (
                    before.heartbeat_at_s or before.released_at_s or 0
                )


def a_prefix_and_the_rest_give_the_whole(log: Log, fold: Fold) -> None:
    codec = RowCodec[GuardedRow](GuardedRow)
    whole = folded(log, fold)
    for cut in range(len(log) + 1):
        stored = {key: codec.encode(row) for key, row in folded(log[:cut], fold).items()}
        assert folded(log[cut:], fold, {key: codec.decode(value) for key, value in stored.items()}) == whole


def claims_do_not_touch_each_other(log: Log, fold: Fold) -> None:
    mine: Log = [
        (frame, at_ms) for frame, at_ms in log if not isinstance(frame, ReleaseGroup) and frame.partition == 0
    ]
    assert folded(mine, fold).get("g/t/0") == folded(log, fold).get("g/t/0")


# -- the oracle


class Fact(NamedTuple):
    """Something the log made true about a claim.

    The oracle remembers facts and derives everything else by looking back at them.
    """

    verb: str  # "took", "renewed", "released", "told", "announced", "odd"
    at_s: int
    frame: Heartbeat | ClaimingPartition | ReleasingPartition | ClaimingMessages
    kind: str = ""


def latest(facts: list[Fact], *verbs: str) -> Fact | None:
    return next((fact for fact in reversed(facts) if fact.verb in verbs), None)


def offset_of(fact: Fact | None) -> int | None:
    return None if fact is None else fact.frame.current_offset  # type: ignore[union-attr]


def facts_about(log: Log, partition: int) -> list[Fact]:
    """Return all facts of *log* about the claim, oldest first."""
    facts: list[Fact] = []
    for frame, at_ms in log:
        if isinstance(frame, ReleaseGroup) or frame.partition != partition:
            continue
        sign = latest(facts, "took", "renewed", "released")
        now_s = at_ms // 1000 if at_ms >= 0 else max(frame.time_s, sign.at_s if sign else frame.time_s)
        facts.extend(Fact(verb, now_s, frame, kind) for verb, kind in judged(facts, frame, now_s))
    return facts


def judged(facts: list[Fact], frame: Frame, now_s: int) -> list[tuple[str, str]]:
    sign, grant = latest(facts, "took", "renewed", "released"), latest(facts, "took")
    owned = sign is not None and sign.verb != "released"
    live = owned and sign is not None and now_s < sign.at_s + 120
    same_client = grant is not None and grant.frame.client_id == frame.client_id
    same = same_client and grant is not None and grant.frame.instance_id == frame.instance_id
    stranger = "" if same else "foreign"
    if isinstance(frame, ClaimingPartition):
        return [] if live else [("took", "")]
    if isinstance(frame, Heartbeat):
        told = [told_by(facts, frame)]
        if same and owned:
            return [("renewed", ""), *told]
        if live and not same_client:
            return [("odd", "foreign-heartbeat")]
        if live and any(
            fact.verb == "took" and fact.frame.instance_id == frame.instance_id for fact in facts
        ):
            return [("odd", "fenced-heartbeat")]
        return [("took", ""), *told]
    if grant is None:
        return []
    if isinstance(frame, ReleasingPartition):
        if stranger or not owned:
            return [("odd", "foreign-release" if stranger else "late-release")]
        return [("released", ""), told_by(facts, frame)]
    assert isinstance(frame, ClaimingMessages)
    if stranger or not live:
        return [("odd", "foreign-proposal" if stranger else "late-proposal")]
    known = offset_of(latest(facts, "told"))
    return (
        [("announced", "")]
        if frame.proposed_current_offset > (-1 if known is None else known)
        else [("odd", "backward-proposal")]
    )


def told_by(facts: list[Fact], frame: Heartbeat | ReleasingPartition) -> tuple[str, str]:
    """Return the offset after a frame that counts: it never goes back, but for the part of the last batch
    that a release gives back.
    """
    known, begin = offset_of(latest(facts, "told")), batch_begin_by(facts)
    if frame.current_offset < 0:
        return ("odd", "negative-offset")
    gives_back = isinstance(frame, ReleasingPartition) and frame.version == GIVES_BACK
    if gives_back and begin is not None and frame.current_offset >= begin:
        return ("told", "")
    return ("told", "") if known is None or frame.current_offset >= known else ("odd", "backward-offset")


def announced_by(facts: list[Fact]) -> int | None:
    """Return the end of the batch announced since the last owner came, unless a heartbeat reached it or
    the claim was released.
    """
    for back, fact in enumerate(reversed(facts)):
        if fact.verb in ("took", "released"):
            return None
        if fact.verb == "announced":
            end = cast(ClaimingMessages, fact.frame).proposed_current_offset
            later = [offset_of(told) for told in facts[len(facts) - back :] if told.verb == "told"]
            return None if any(offset is not None and offset >= end for offset in later) else end
    return None


def batch_begin_by(facts: list[Fact]) -> int | None:
    """Return where the offset was before the heartbeat that moved it last, if that committed a batch and the
    claim is with the same owner since.
    """
    for at in reversed(range(len(facts))):
        fact, before = facts[at], offset_of(latest(facts[:at], "told"))
        if fact.verb in ("took", "released"):
            return None
        if fact.verb == "told" and offset_of(fact) != before:
            end, offset = announced_by(facts[:at]), offset_of(fact)
            return before if end is not None and offset is not None and offset >= end else None
    return None


def claim_by_oracle(log: Log) -> Claim | None:
    facts = facts_about(log, 0)
    grants = [fact for fact in facts if fact.verb == "took"]
    odds = [fact for fact in facts if fact.verb == "odd"]
    sign, heard = latest(facts, "took", "renewed", "released"), latest(facts, "took", "renewed")
    if sign is None or heard is None:
        assert not odds
        return None
    owner = grants[-1].frame
    replaced = [fact.frame.instance_id for fact in grants if fact.frame.instance_id != owner.instance_id]
    fenced = tuple(dict.fromkeys(reversed(replaced)))[::-1]
    claim = Claim(
        owner.client_id,
        owner.instance_id,
        len(grants),
        None if sign.verb == "released" else sign.at_s,
        sign.at_s if sign.verb == "released" else None,
        offset_of(latest(facts, "told")),
        announced_by(facts),
        heard.frame.time_s,
        fenced,
        batch_begin=batch_begin_by(facts),
    )
    if not odds:
        return claim
    last = odds[-1]
    noted = Anomaly(
        len(odds), AnomalyKind(last.kind), last.at_s, last.frame.client_id, last.frame.instance_id
    )
    return msgspec.structs.replace(claim, anomaly=noted)


def the_oracle_agrees(log: Log, fold: Fold) -> None:
    for length in range(1, len(log) + 1):
        assert folded(log[:length], fold).get("g/t/0") == claim_by_oracle(log[:length])


Check = Callable[[Log, Fold], None]
CHECKS: list[Check] = [
    at_most_one_owner_is_live,
    strangers_move_nothing_while_the_owner_is_live,
    rows_make_sense,
    a_prefix_and_the_rest_give_the_whole,
    claims_do_not_touch_each_other,
    the_oracle_agrees,
]


@pytest.mark.long
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@settings(max_examples=scaled(150))
@given(log=logs())
def test_of_every_random_log_it_holds_that(check: Check, log: Log) -> None:
    check(log, fold_guarded)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_release_counts_though_append_times_begin_after_it(check: Check) -> None:
    """A log that random search found: the first append time sets log time back."""
    log: Log = [
        (Heartbeat(10_000, "a1", "a", "g", "t", 0, 0), -1),
        (ReleasingPartition(10_001, "a1", "a", "g", "t", 0, 0), -1),
        (Heartbeat(10_000, "b1", "b", "g", "t", 0, 0), 10_000_500),
    ]
    check(log, fold_guarded)
    claim = folded(log, fold_guarded)["g/t/0"]
    assert isinstance(claim, Claim)
    assert (claim.client_id, claim.heartbeat_at_s) == ("b", 10_000)


# -- planted faults


def about(frame: Frame) -> str:
    return "" if isinstance(frame, ReleaseGroup) else f"{frame.group_id}/{frame.topic}/{frame.partition}"


def credulous(rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
    """A heartbeat makes its sender the owner, as in the Go library."""
    before = cast(Claim | None, rows.get(about(frame)))
    if isinstance(frame, Heartbeat) and before is not None:
        owned = msgspec.structs.replace(before, client_id=frame.client_id, instance_id=frame.instance_id)
        rows[about(frame)] = owned
    fold_guarded(rows, frame, at_ms)


def hasty(rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
    """A claim is free one second too early."""
    fold_guarded(rows, frame, at_ms + 1000 if at_ms >= 0 and isinstance(frame, ClaimingPartition) else at_ms)


def trusting(rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
    """The sender's clock decides although there are append times."""
    fold_guarded(rows, frame, -1 if isinstance(frame, Heartbeat) else at_ms)


def forgetful(rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
    """A new owner starts without its predecessor's offset."""
    before = cast(Claim | None, rows.get(about(frame)))
    fold_guarded(rows, frame, at_ms)
    after = cast(Claim | None, rows.get(about(frame)))
    if (
        isinstance(frame, ClaimingPartition)
        and before is not None
        and after is not None
        and before.epoch != after.epoch
    ):
        rows[about(frame)] = msgspec.structs.replace(after, current_offset=None)


def lenient(rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
    """Replaced instances are not remembered."""
    fold_guarded(rows, frame, at_ms)
    after = rows.get(about(frame))
    if isinstance(after, Claim):
        rows[about(frame)] = msgspec.structs.replace(after, fenced=())


def blurred(rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
    """All partitions of a topic are one claim."""
    fold_guarded(
        rows, frame if isinstance(frame, ReleaseGroup) else msgspec.structs.replace(frame, partition=0), at_ms
    )


class Moody:
    """Keeps something outside of the rows."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rows: Rows[GuardedRow], frame: Frame, at_ms: int) -> None:
        self.calls += 1
        if self.calls % 7:
            fold_guarded(rows, frame, at_ms)


@pytest.mark.long
@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (at_most_one_owner_is_live, credulous),
        (at_most_one_owner_is_live, hasty),
        (at_most_one_owner_is_live, trusting),
        (strangers_move_nothing_while_the_owner_is_live, credulous),
        (rows_make_sense, forgetful),
        (rows_make_sense, trusting),
        (a_prefix_and_the_rest_give_the_whole, Moody),
        (claims_do_not_touch_each_other, blurred),
        *(
            (the_oracle_agrees, fault)
            for fault in (credulous, hasty, trusting, forgetful, lenient, blurred, Moody)
        ),
    ],
    ids=lambda each: each.__name__,
)
def test_each_check_fires_on_a_fold_with_a_fault(check: Check, fault: Fold | type[Moody]) -> None:
    @settings(max_examples=1000, phases=[Phase.generate], derandomize=True, database=None)
    @given(log=logs())
    def search(log: Log) -> None:
        check(log, fault() if isinstance(fault, type) else fault)

    with pytest.raises(AssertionError):
        search()
