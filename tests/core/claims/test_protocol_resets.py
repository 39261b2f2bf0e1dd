"""docs/PROTOCOL.md, "Pausing and resetting a group", against the code: every row of its tables is
executed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

import pytest

from holdfast.clients.claims.logs.reset_log import ResetLog, settle
from holdfast.clients.groups.view import LONGEST_SILENCE_S
from holdfast.core.claims import claim_keys, claim_rows, resets
from holdfast.core.claims.claim_keys import RESET_INSTANCE, ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import (
    FRAME_TYPES,
    STALE_AFTER_S,
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleasingPartition,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.resets import (
    Decision,
    Decisions,
    ResetAbort,
    ResetCommit,
    decode_decision,
    encode_decision,
)
from tests.core.claims.test_protocol_page import NOW_S, PAGE, plain, rows_of, table

KEY = ClaimKey("g", "orders", 0)
RESET = RESET_INSTANCE + "5e"
HELD = Claim("admin", RESET, 3, NOW_S - 10, None, 40, None, NOW_S - 10, ("i7",))
COMMIT = ResetCommit(reset_id="5e", group="g", client="admin", at_s=NOW_S, offsets={"orders": ((0, 40, 0),)})
ABORT = ResetAbort(reset_id="5e", group="g", client="worker-8", at_s=NOW_S, reason="silent")


def frame(kind: str, client: str, instance: str) -> Frame:
    match kind:
        case "Heartbeat":
            return Heartbeat(NOW_S, instance, client, *KEY, 49)
        case "ClaimingPartition":
            return ClaimingPartition(NOW_S, instance, client, *KEY)
        case "ReleasingPartition":
            return ReleasingPartition(NOW_S, instance, client, *KEY, 9)
    return ClaimingMessages(NOW_S, instance, client, *KEY, 99)


SENDERS = {
    "the reset": [("admin", RESET)],
    "others": [("worker-8", "i8"), ("admin", "i9"), ("admin", RESET_INSTANCE + "other")],
    "any": [("admin", RESET), ("worker-8", "i8"), ("admin", RESET_INSTANCE + "other")],
}


def fold(before: Claim, arriving: Frame) -> Claim:
    held, rows = rows_of("g/orders/0", before)
    fold_guarded(cast(Any, rows), arriving, NOW_S * 1000)
    return cast(Claim, held["g/orders/0"])


def test_the_constants_of_the_page_are_those_of_the_code() -> None:
    told = {plain(row["Constant"]): plain(row["Is"]) for row in table("Constant", "Is", "For")}
    constants = {**vars(resets), **vars(claim_keys)}
    assert told == {name: str(constants[name]) for name in told}
    assert {name for name in vars(resets) if re.fullmatch(r"(LIMIT|RESET)[A-Z]*_[A-Z_]+", name)} == set(told)


def test_the_decisions_of_the_page_are_read_and_written_to_the_letter() -> None:
    samples = re.findall(r"^    (\{\"decision\".*\})$", PAGE, re.MULTILINE)
    assert [type(decode_decision(sample.encode())) for sample in samples] == [ResetCommit, ResetAbort]
    for sample in samples:
        assert encode_decision(decode_decision(sample.encode())).decode() == sample


@pytest.mark.parametrize("age_s", [10, STALE_AFTER_S, 1_000_000])
def test_a_reserved_claim_meets_each_frame_as_the_page_says(age_s: int) -> None:
    rows = table("Reserved claim meets", "From", "Then", "As an anomaly")
    assert {row["Reserved claim meets"] for row in rows} == set(FRAME_TYPES) - {"ReleaseGroup"}
    before = Claim("admin", RESET, 3, NOW_S - age_s, None, 40, None, NOW_S - age_s, ("i7",))
    for row in rows:
        for sender in SENDERS[row["From"]]:
            after = fold(before, frame(row["Reserved claim meets"], *sender))
            assert (None if after.anomaly is None else after.anomaly.kind.value) == (
                row["As an anomaly"] or None
            ), row
            assert (after.client_id, after.instance_id, after.epoch) == ("admin", RESET, 3), row
            renewed = (after.heartbeat_at_s == NOW_S, after.released_at_s == NOW_S, after.current_offset)
            assert (
                renewed
                == {
                    "nothing": (False, False, 40),
                    "renew, offset": (True, False, 49),
                    "release, offset": (False, True, 9),
                }[row["Then"]]
            )


def test_a_heartbeat_of_a_reset_takes_no_claim_of_anybody() -> None:
    live = Claim("worker-8", "i8", 4, NOW_S - 1, None, 3, None, NOW_S - 1)
    stale = Claim("worker-8", "i8", 4, NOW_S - 1_000, None, 3, None, NOW_S - 1_000)
    released = Claim("worker-8", "i8", 4, None, NOW_S - 1, 3, None, NOW_S - 1)
    for before in (live, stale, released):
        after = fold(before, frame("Heartbeat", "admin", RESET))
        assert after.anomaly is not None
        assert after.anomaly.kind is claim_rows.AnomalyKind.FOREIGN_HEARTBEAT
        assert (after.client_id, after.current_offset, after.heartbeat_at_s) == (
            "worker-8",
            3,
            before.heartbeat_at_s,
        )
    assert "foreign-heartbeat), whether that claim is live, stale or released" in " ".join(PAGE.split())


def test_what_a_reset_gave_back_is_taken_by_claiming_alone() -> None:
    given_back = Claim("admin", RESET, 3, None, NOW_S - 1, 0, None, NOW_S - 10, ("i7",))
    for client, instance in (("worker-7", "i7"), ("worker-8", "i8"), ("admin", RESET)):
        after = fold(given_back, frame("Heartbeat", client, instance))
        assert after.anomaly is not None
        assert after.anomaly.kind is claim_rows.AnomalyKind.FOREIGN_HEARTBEAT
        assert (after.heartbeat_at_s, after.current_offset) == (None, 0)
    after = fold(given_back, frame("ClaimingPartition", "worker-8", "i8"))
    assert (after.client_id, after.current_offset) == ("worker-8", 0)
    assert "only `ClaimingPartition` takes a claim that a reset gave back" in " ".join(PAGE.split())


class Log(ResetLog):
    """Decisions in memory; *late* is a record that another client writes just before the next."""

    def __init__(self, *written: Decision, late: Decision | None = None) -> None:
        self.written, self._late = [*written], late

    def ensure(self) -> None:
        pass

    def decisions(self) -> Decisions:
        found = Decisions()
        for decision in self.written:
            found.add(decision)
        return found

    def decide(self, decision: Decision) -> Decision:
        self.written += [decision] if self._late is None else [self._late, decision]
        found = self.decisions()[decision.reset_id]
        assert found is not None
        return found


def test_what_a_dead_reset_holds_is_settled_as_the_page_says() -> None:
    rows = table("First decision", "Administrator", "Written by who looks", "Given back with")
    logs: dict[str, Callable[[], Log]] = {
        "commit": lambda: Log(COMMIT),
        "abort": lambda: Log(ABORT, COMMIT),
        "none": Log,
    }
    logs["none, but a commit comes before the abort"] = lambda: Log(late=COMMIT)
    assert {row["First decision"] for row in rows} == set(logs)
    offsets = {"its new offset": [0], "its old offset": [40], "not given back": []}
    for row in rows:
        for silent in {"any": (False, True), "heard of": (False,), "silent": (True,)}[row["Administrator"]]:
            log = logs[row["First decision"]]()
            before = len(log.written)
            frames = settle(
                log,
                {KEY: HELD},
                client="worker-8",
                now_s=NOW_S,
                is_silent=lambda _, told=silent: told,  # type: ignore[misc]
                start=lambda _: 0,
            )
            assert [frame.current_offset for frame in frames] == offsets[plain(row["Given back with"])], row
            assert all((frame.client_id, frame.instance_id) == ("admin", RESET) for frame in frames)
            wrote = [
                type(decision).__name__.removeprefix("Reset").lower()
                for decision in log.written[before:]
                if decision is not COMMIT
            ]
            assert wrote == ([row["Written by who looks"]] if row["Written by who looks"] else []), row


def test_a_go_member_counts_as_live_for_as_long_as_the_page_says() -> None:
    assert LONGEST_SILENCE_S == STALE_AFTER_S
    assert "one is live for `STALE_AFTER_S`, however short the fleet's own interval" in " ".join(PAGE.split())
