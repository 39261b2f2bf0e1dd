"""docs/PROTOCOL.md against the code: every row of its tables is executed, and every case of the code is
found in its tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any, cast

import msgspec
import pytest

from holdfast.core.claims import claim_keys, claim_rows, compat, frames, guarded, staleness
from holdfast.core.claims.claim_keys import claim_key, pause_key
from holdfast.core.claims.claim_rows import AnomalyKind, Claim, Pause
from holdfast.core.claims.compat import CompatClaim, fold_compat
from holdfast.core.claims.frames import (
    ClaimingMessages,
    ClaimingPartition,
    Frame,
    FrameReason,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    coordination_partition,
    decode,
    encode,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import FrameError
from tests.support.places import DOCS, ROOT

PAGE = (DOCS / "PROTOCOL.md").read_text()
NOW_S = 1_700_000_000
AT_MS = NOW_S * 1000 + 999

Row = dict[str, str]


def tables(page: str) -> list[list[Row]]:
    """Return every table of *page*, rows as dicts by heading; backticks and emphasis around a cell are
    dropped.
    """
    found: list[list[Row]] = []
    headings: list[str] | None = None
    for line in page.splitlines():
        if not line.startswith("|"):
            headings = None
            continue
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if headings is None:
            headings = cells
            found.append([])
        elif not set(line) <= set("|-"):
            assert len(cells) == len(headings), line
            found[-1].append(dict(zip(headings, cells, strict=True)))
    return found


def table(*headings: str, page: str = PAGE) -> list[Row]:
    """Return the rows of the one table with exactly *headings*."""
    matching = [rows for rows in tables(page) if rows and tuple(rows[0]) == headings]
    assert len(matching) == 1, f"{len(matching)} tables with the headings {headings}"
    return matching[0]


def plain(cell: str) -> str:
    return cell.strip("`*")


def rows_of(key: str, row: Any) -> tuple[dict[str, Any], Rows[Any]]:
    """Return rows holding *row* under *key* (nothing for None), twice: as a dict to look into and as what
    a fold takes.
    """
    held: dict[str, Any] = {} if row is None else {key: row}
    return held, cast(Rows[Any], held)


# -- constants and frames


def test_every_constant_of_the_page_is_that_of_the_code_and_the_page_has_all_of_them() -> None:
    told = {plain(row["Name"]): plain(row["Value"]) for row in table("Name", "Value", "Meaning")}
    constants = {**vars(frames), **vars(claim_keys), **vars(guarded), **vars(compat)}
    assert told == {name: str(constants[name]) for name in told}
    public = {
        name for name in constants if re.fullmatch(r"(LIMIT|HEARTBEAT|STALE|BASE|COORDINATION)_[A-Z_]+", name)
    }
    assert set(told) == public


def test_every_frame_of_the_page_has_the_named_fields_and_survives_a_round_trip() -> None:
    rows = table("Type", "Fields", "Last field", "Sample")
    assert [plain(row["Type"]) for row in rows] == list(frames.FRAME_TYPES)
    for row in rows:
        kind, sample = frames.FRAME_TYPES[plain(row["Type"])], plain(row["Sample"]).encode()
        frame = decode(sample)
        assert type(frame) is kind
        assert encode(frame) == sample
        assert sample.count(b"/") + 1 == int(row["Fields"])
        last = [field for field in kind.__struct_fields__ if field.endswith(("_offset", "expire_time_s"))]
        assert last == ([plain(row["Last field"])] if row["Last field"] else [])
        for wrong in (sample + b"/1", sample.rpartition(b"/")[0]):
            with pytest.raises(FrameError):
                decode(wrong)


def test_every_refusal_of_the_page_is_the_decoders_in_its_order() -> None:
    rows = table("Reason", "Sample", "Why")
    assert [plain(row["Reason"]) for row in rows][2:7] == [
        "Invalid message (length)",
        "number",
        "Invalid message",
        "hb length",
        "cp length",
    ]
    for row in rows:
        spoken = row["Sample"]
        repeated = re.fullmatch(r"`(.*)` and (\d+) times `(.)`", spoken)
        text = repeated[1] + repeated[3] * int(repeated[2]) if repeated else plain(spoken)
        value = None if spoken == "*no value*" else text.replace("\\xff", "\xff").encode("latin-1")
        with pytest.raises(FrameError) as caught:
            decode(value)
        assert caught.value.reason == plain(row["Reason"])
    on_writing = {FrameReason.ID, FrameReason.RANGE}
    assert {plain(row["Reason"]) for row in rows} == set(FrameReason) - on_writing
    assert all(f"(`{reason}`" in PAGE for reason in on_writing)


def test_every_coordinating_partition_of_the_page_is_computed() -> None:
    for row in table("Topic", "N=1", "N=3", "N=4", "N=50", "N=128"):
        for heading, cell in row.items():
            if heading != "Topic":
                assert coordination_partition(plain(row["Topic"]), int(heading[2:])) == int(cell)


# -- time and status


def held(**changes: Any) -> Claim:
    claim = Claim("client", "instance", 3, NOW_S - 10, None, 50, 70, NOW_S - 11, ("old", "older"))
    return msgspec.structs.replace(claim, **changes)


def test_every_log_time_of_the_page_is_what_the_fold_writes() -> None:
    for row in table("at_ms", "Frame time, s", "Claim knows, s", "Log time, s"):
        known = int(row["Claim knows, s"]) if row["Claim knows, s"] else None
        befores: Iterable[Claim | None] = [None]
        if known is not None:
            befores = [held(heartbeat_at_s=known), held(heartbeat_at_s=None, released_at_s=known)]
        for before, offset in product(befores, (60, -1)):
            state, rows = rows_of("group/topic/3", before)
            fold_guarded(
                rows,
                Heartbeat(int(row["Frame time, s"]), "instance", "client", "group", "topic", 3, offset),
                int(row["at_ms"]),
            )
            assert state["group/topic/3"].heartbeat_at_s == int(row["Log time, s"]), row


def test_every_status_of_the_page_is_the_codes() -> None:
    for row in table("Ages, s", "Status", "Claimed"):
        if row["Ages, s"] == "*released*":
            asked = [held(heartbeat_at_s=None, released_at_s=NOW_S)]
        else:
            asked = [held(heartbeat_at_s=NOW_S - int(age)) for age in row["Ages, s"].split(",")]
        for claim in asked:
            assert staleness.status(claim, NOW_S) == row["Status"]
            assert staleness.claimed(claim, NOW_S) is (row["Claimed"] == "yes")
    assert {row["Status"] for row in table("Ages, s", "Status", "Claimed")} == set(staleness.ClaimStatus)


# -- the guarded view

CLAIMS: dict[str, Claim | None] = {
    "none": None,
    "live": held(heartbeat_at_s=NOW_S - frames.STALE_AFTER_S + 1),
    "stale": held(heartbeat_at_s=NOW_S - frames.STALE_AFTER_S),
    "released": held(heartbeat_at_s=None, released_at_s=NOW_S - 5, proposed_offset=None),
}
SENDERS = {
    "owner": ("client", "instance"),
    "new instance": ("client", "newer"),
    "fenced instance": ("client", "old"),
    "other client": ("rival", "instance-2"),
}
OTHERS = ("new instance", "fenced instance", "other client")
ON_CLAIMS = ("Heartbeat", "ClaimingPartition", "ReleasingPartition", "ClaimingMessages")


def frame_of(kind: str, sender: str, offset: int = 60) -> Frame:
    client_id, instance_id = SENDERS[sender]
    match kind:
        case "Heartbeat":
            return Heartbeat(NOW_S - 1, instance_id, client_id, "group", "topic", 3, offset)
        case "ReleasingPartition":
            return ReleasingPartition(NOW_S - 1, instance_id, client_id, "group", "topic", 3, offset)
        case "ClaimingMessages":
            return ClaimingMessages(NOW_S - 1, instance_id, client_id, "group", "topic", 3, offset)
    assert kind == "ClaimingPartition"
    return ClaimingPartition(NOW_S - 1, instance_id, client_id, "group", "topic", 3)


def senders(cell: str) -> tuple[str, ...]:
    return {"any": tuple(SENDERS), "others": OTHERS}.get(cell, (cell,))


EFFECT_FIELDS = (
    "client_id",
    "instance_id",
    "epoch",
    "heartbeat_at_s",
    "released_at_s",
    "current_offset",
    "proposed_offset",
    "frame_time_s",
    "fenced",
    "batch_begin",
)


def number_in(frame: Frame) -> int:
    assert isinstance(frame, Heartbeat | ReleasingPartition | ClaimingMessages)
    return frame.proposed_current_offset if isinstance(frame, ClaimingMessages) else frame.current_offset


def guarded_after(effects: str, before: Claim | None, frame: Frame) -> Claim | None:
    """Return the page's result for *before*; it knows the meaning of a cell and nothing of the
    rules.
    """
    meaning = {row["Effect"]: row for row in table("Effect", *EFFECT_FIELDS)}
    if effects == "nothing":
        assert all(meaning["nothing"][field] == "kept" for field in EFFECT_FIELDS)
        return before
    after = before or Claim("", "", 0, None, None, None, None, 0)
    replaced = before.instance_id if before is not None else None
    for effect in effects.split(", "):
        changes: dict[str, Any] = {}
        for field in EFFECT_FIELDS:
            match meaning[effect][field]:
                case "kept":
                    continue
                case "none":
                    changes[field] = None
                case "log time":
                    changes[field] = NOW_S
                case "+1":
                    changes[field] = getattr(after, field) + 1
                case "frame" if field.endswith("_offset"):
                    changes[field] = number_in(frame)
                case "frame":
                    changes[field] = getattr(frame, {"frame_time_s": "time_s"}.get(field, field))
                case "cleared at or below":
                    announced = after.proposed_offset
                    changes[field] = None if announced is None or announced <= number_in(frame) else announced
                case "where a batch is cleared":
                    announced = after.proposed_offset
                    if number_in(frame) != after.current_offset:
                        committed = announced is not None and announced <= number_in(frame)
                        changes[field] = after.current_offset if committed else None
                case "+ replaced":
                    kept = [each for each in after.fenced if each != frame.instance_id]
                    changes[field] = tuple(
                        [*kept, replaced] if replaced not in (None, frame.instance_id) else kept
                    )
                case word:
                    raise AssertionError(f"{effect}.{field}: the page says {word!r}")
        after = msgspec.structs.replace(after, **changes)
    return after


def check_guarded(before: Claim | None, frame: Frame, effects: str, anomaly: str) -> None:
    state, rows = rows_of("group/topic/3", before)
    assert fold_guarded(rows, frame, AT_MS) is None
    after = state.get("group/topic/3")
    expected = guarded_after(effects, before, frame)
    if anomaly:
        assert expected is not None
        noted = claim_rows.Anomaly(1, AnomalyKind(anomaly), NOW_S, frame.client_id, frame.instance_id)
        expected = msgspec.structs.replace(expected, anomaly=noted)
    assert after == expected, f"{frame} on {before}"


@pytest.mark.parametrize(
    "row", table("Claim", "Frame", "Sender", "Effect", "Anomaly"), ids=lambda row: " ".join(row.values())
)
def test_each_transition_of_the_guarded_view_does_what_the_page_says(row: Row) -> None:
    for sender in senders(row["Sender"]):
        before = CLAIMS[row["Claim"]]
        for offset in (60, 90):  # short of the announced end, and past it
            check_guarded(before, frame_of(row["Frame"], sender, offset), row["Effect"], row["Anomaly"])


def test_the_page_has_one_transition_for_every_claim_frame_and_sender() -> None:
    told = [
        (row["Claim"], row["Frame"], sender)
        for row in table("Claim", "Frame", "Sender", "Effect", "Anomaly")
        for sender in senders(row["Sender"])
    ]
    assert sorted(told) == sorted(product(CLAIMS, ON_CLAIMS, SENDERS))
    assert set(ON_CLAIMS) | {"ReleaseGroup"} == set(frames.FRAME_TYPES)


def test_numbers_that_do_not_fit_do_what_the_page_says() -> None:
    rows = table("Claim", "Frame of the owner", "Last field", "Effect", "Anomaly")
    numbers = {"below `current_offset`": 49, "below 0": -1, "at `current_offset`": 50}
    for row in rows:
        check_guarded(
            CLAIMS[row["Claim"]],
            frame_of(row["Frame of the owner"], "owner", numbers[row["Last field"]]),
            row["Effect"],
            row["Anomaly"],
        )
    told = {row["Anomaly"] for row in rows + table("Claim", "Frame", "Sender", "Effect", "Anomaly")} - {""}
    assert told == {each.value for each in AnomalyKind}, "every kind of anomaly is on the page"


def test_every_mark_of_the_page_is_computed() -> None:
    for row in table("Topic id", "Mark"):
        assert str(frames.topic_mark(plain(row["Topic id"])) or "none") == row["Mark"]


def test_offsets_of_another_topic_do_what_the_page_says() -> None:
    marks = {"none": None, "W": 5, "X": 6, "Y": 7}
    for row in table("Row's mark", "Frame", "Sender", "Frame's mark", "Offset after", "Mark after"):
        mark = marks[row["Row's mark"]]
        before = held(
            heartbeat_at_s=NOW_S - 5, current_offset=40, topic_mark=mark, former_marks=(5,) if mark else ()
        )
        for sender in senders(row["Sender"]):
            frame = msgspec.structs.replace(
                frame_of(row["Frame"], sender, 20), version=marks[row["Frame's mark"]] or frames.UNMARKED
            )
            assert frames.decode(frames.encode(frame)) == frame
            state, rows = rows_of("group/topic/3", before)
            fold_guarded(rows, frame, AT_MS)
            after = state["group/topic/3"]
            assert after.current_offset == int(row["Offset after"]), row
            assert after.topic_mark == marks[row["Mark after"]], row
            moved = after.topic_mark != mark
            assert after.proposed_offset is None or not moved, "what was announced of the old topic is void"
            assert after.former_marks == ((*before.former_marks, mark) if moved else before.former_marks)


def test_a_release_sets_the_offset_that_the_page_says() -> None:
    for row in table("Release of", "Names", "Version", "Offset after", "Anomaly"):
        for sender in senders(row["Release of"]):
            before = held(heartbeat_at_s=NOW_S - 5, current_offset=30, proposed_offset=40)
            state, rows = rows_of("group/topic/3", before)
            fold_guarded(rows, frame_of("Heartbeat", "owner", 40), AT_MS)
            assert state["group/topic/3"].batch_begin == 30
            fold_guarded(rows, frame_of("Heartbeat", "owner", 40), AT_MS)  # a renewal
            release = frame_of("ReleasingPartition", sender, int(row["Names"]))
            fold_guarded(rows, msgspec.structs.replace(release, version=int(row["Version"])), AT_MS)
            after = state["group/topic/3"]
            assert after.current_offset == int(row["Offset after"]), row
            kind = "" if after.anomaly is None else after.anomaly.kind.value
            assert kind == row["Anomaly"], row
            assert after.heartbeat_at_s is not None or after.batch_begin is None


def test_a_batch_can_be_given_back_once_and_by_its_owner_alone() -> None:
    committed = held(heartbeat_at_s=NOW_S - 5, current_offset=40, batch_begin=30)
    for changed in (
        frame_of("Heartbeat", "owner", 41),
        frame_of("Heartbeat", "new instance", 40),
        frame_of("ReleasingPartition", "owner", 40),
    ):
        state, rows = rows_of("group/topic/3", committed)
        fold_guarded(rows, changed, AT_MS)
        assert state["group/topic/3"].batch_begin is None, changed


def test_a_row_holds_the_fields_that_the_page_lists() -> None:
    guarded, compat = (
        [plain(row["Field"]) for row in rows] for rows in (table("Field", "Meaning"), table("Field", "Go"))
    )
    assert tuple(guarded) == Claim.__struct_fields__
    assert tuple(compat) == CompatClaim.__struct_fields__
    assert claim_key("group", "topic", 3) == "group/topic/3"


def test_each_pause_of_the_page_leaves_the_row_it_says() -> None:
    def row_of(cell: str) -> Pause | None:
        return None if cell == "none" else Pause(int(cell.removeprefix("expires at ")), 0, "", "")

    for row in table("Log time, s", "msg_expire_time_s", "Row before", "Row after"):
        state, rows = rows_of("/pause//group", row_of(row["Row before"]))
        frame = ReleaseGroup(5, "instance", "admin", "group", int(row["msg_expire_time_s"]))
        fold_guarded(rows, frame, int(row["Log time, s"]) * 1000 + 999)
        after = state.get(pause_key("group"))
        assert (after and after.expires_at_s) == (
            expected.expires_at_s if (expected := row_of(row["Row after"])) else None
        ), row


# -- the compat view

GO = CompatClaim("instance", "client", "group", 0, NOW_S, 50)
COMPAT_CLAIMS: dict[str, CompatClaim | None] = {
    "none": None,
    "live": msgspec.structs.replace(GO, last_heartbeat_s=NOW_S - 119),
    "stale": msgspec.structs.replace(GO, last_heartbeat_s=NOW_S - 120),
    "future": msgspec.structs.replace(GO, last_heartbeat_s=NOW_S + 1),
    "released": msgspec.structs.replace(GO, last_heartbeat_s=0, last_release_s=NOW_S - 5),
}


def compat_after(effect: str, before: CompatClaim | None, frame: Frame) -> CompatClaim | None:
    meaning = {row["Effect"]: row for row in table("Effect", *CompatClaim.__struct_fields__)}[effect]
    words = [meaning[field] for field in CompatClaim.__struct_fields__]
    if set(words) == {"kept"}:
        return before
    start = before or CompatClaim()
    changes: dict[str, Any] = {}
    for field, word in zip(CompatClaim.__struct_fields__, words, strict=True):
        if word == "frame time":
            changes[field] = frame.time_s
        elif word == "frame":
            changes[field] = number_in(frame) if field == "current_offset" else getattr(frame, field)
        elif word != "kept":
            changes[field] = int(word)
    return msgspec.structs.replace(start, **changes)


def test_each_transition_of_the_compat_view_does_as_the_page_says_and_the_page_has_all() -> None:
    told = []
    for row in table("Claim", "Frame", "Sender", "Effect"):
        for claim in COMPAT_CLAIMS if row["Claim"] == "any" else (row["Claim"],):
            for sender in senders(row["Sender"]):
                told.append((claim, row["Frame"], sender))
                frame = frame_of(row["Frame"], sender)
                state, rows = rows_of("group/topic/3", COMPAT_CLAIMS[claim])
                assert fold_compat(rows, frame, AT_MS) is None
                assert state.get("group/topic/3") == compat_after(
                    row["Effect"], COMPAT_CLAIMS[claim], frame
                ), row
    assert sorted(told) == sorted(product(COMPAT_CLAIMS, ON_CLAIMS, SENDERS))


# -- the departures


def test_every_departure_of_the_page_names_a_test_that_exists() -> None:
    rows = table("#", "Upstream", "holdfast", "Shown by")
    assert {"D1", "D2", "D3", "D4", "D8", "D16", "D17", "D23"} <= {row["#"] for row in rows}
    sources = "".join(path.read_text() for path in (ROOT / "tests" / "core").rglob("test_*.py"))
    for row in rows:
        assert f"def {plain(row['Shown by'])}(" in sources, row["Shown by"]


# -- the checks themselves can fail


@pytest.mark.parametrize(
    ("told", "changed"),
    [
        (
            "| live | Heartbeat | other client | nothing | foreign-heartbeat |",
            "| live | Heartbeat | other client | take, offset | |",
        ),
        ("| stale | ClaimingPartition | any | take | |", "| stale | ClaimingPartition | any | nothing | |"),
        (
            "| live | ReleasingPartition | owner | release, offset | |",
            "| live | ReleasingPartition | owner | release | |",
        ),
    ],
)
def test_a_changed_row_of_the_page_is_noticed(told: str, changed: str) -> None:
    assert PAGE.count(told) == 1
    before, after = (
        table("Claim", "Frame", "Sender", "Effect", "Anomaly", page=page)
        for page in (PAGE, PAGE.replace(told, changed))
    )
    (row,) = (row for row in after if row not in before)
    with pytest.raises(AssertionError):
        test_each_transition_of_the_guarded_view_does_what_the_page_says(row)


def every_guarded_transition() -> None:
    for row in table("Claim", "Frame", "Sender", "Effect", "Anomaly"):
        test_each_transition_of_the_guarded_view_does_what_the_page_says(row)


@pytest.mark.long
@pytest.mark.parametrize(
    "check",
    [
        every_guarded_transition,
        test_every_status_of_the_page_is_the_codes,
        test_each_transition_of_the_compat_view_does_as_the_page_says_and_the_page_has_all,
        test_every_constant_of_the_page_is_that_of_the_code_and_the_page_has_all_of_them,
    ],
)
def test_changed_code_is_noticed(check: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    check()
    for view in (staleness, compat):
        monkeypatch.setattr(view, "STALE_AFTER_S", 121)
    with pytest.raises(AssertionError):
        check()
