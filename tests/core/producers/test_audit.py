"""The audit's rules: a right record is never found fault with, and every planted fault is found at its
offset.
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.kafka.sequences import MAX_SEQUENCE
from holdfast.core.producers.audit import LIMIT_FINDINGS, LIMIT_NUMBERS, FindingKind, Rules
from holdfast.core.producers.ledger import LIMIT_HOLES
from holdfast.core.producers.stamps import Stamp
from tests.support.audit_histories import (
    OUTBOX,
    History,
    Published,
    audited,
    histories,
    orders,
    renumbered,
    told,
)
from tests.support.places import DOCS

PAGE = DOCS / "outbox.md"
NUMBERED = Rules(outbox=OUTBOX, number="n")


def ends(history: History) -> dict[str, int]:
    return {each.stamp.producer: each.stamp.sequence for each in history if each.stamp is not None}


@pytest.mark.long
@given(histories())
def test_what_harvesters_publish_over_leader_changes_is_never_found_fault_with(history: History) -> None:
    for rules in (Rules(), Rules(outbox=OUTBOX), NUMBERED):
        found = audited(history, rules, expected=ends(history))
        assert found.is_clean, told(found)
        assert found.audited == sum(each.stamp is not None for each in history)


@given(histories(), st.integers(0, 40))
def test_a_log_whose_beginning_was_deleted_is_not_found_fault_with(history: History, cut: int) -> None:
    left = history[cut:]
    first = left[0].offset if left else 1_000
    found = audited(left, first_offset=max(1, first), expected=ends(history))
    assert found.is_clean, told(found)


@pytest.mark.parametrize("begins", [MAX_SEQUENCE - 5, (MAX_SEQUENCE >> 1) + 5])
def test_numbers_far_on_and_beyond_the_last_one_are_none_missing(begins: int) -> None:
    history = [Published(at + 7, b"k", Stamp("shop-0", 1, (begins + at) & MAX_SEQUENCE)) for at in range(20)]
    assert audited(history, first_offset=7).is_clean
    (found,) = audited(history, first_offset=0).findings
    assert (found.kind, found.first, found.last) == (FindingKind.LOST, 0, begins - 1)


def _stamped(history: History) -> list[int]:
    return [at for at, each in enumerate(history) if each.stamp is not None]


@pytest.mark.long
@given(histories(least=4), st.data())
def test_a_planted_repetition_is_found_at_its_offset(history: History, data: st.DataObject) -> None:
    places = _stamped(history)
    at = data.draw(st.sampled_from(places))
    later = data.draw(st.integers(at + 1, len(history)))
    planted = renumbered([*history[:later], history[at], *history[later:]])
    found = audited(planted, expected=ends(history))
    (one,) = found.findings
    # a leader that came between makes the old one's record a zombie's
    assert one.kind in (FindingKind.DUPLICATE, FindingKind.ZOMBIE)
    stamp = history[at].stamp
    assert stamp is not None
    assert (one.offset, one.first, one.epoch) == (later, stamp.sequence, stamp.epoch)


@pytest.mark.long
@given(histories(least=4), st.data())
def test_a_planted_gap_is_found_between_its_neighbours(history: History, data: st.DataObject) -> None:
    at = data.draw(st.sampled_from(_stamped(history)))
    stamp = history[at].stamp
    assert stamp is not None
    found = audited(history[:at] + history[at + 1 :], expected=ends(history))
    (one,) = found.findings
    mine = [
        each.offset for each in history if each.stamp is not None and each.stamp.producer == stamp.producer
    ]
    before = [offset for offset in mine if offset < history[at].offset]
    behind = [offset for offset in mine if offset > history[at].offset]
    assert (one.kind, one.producer, one.first, one.last) == (
        FindingKind.LOST,
        stamp.producer,
        stamp.sequence,
        stamp.sequence,
    )
    assert one.after == (before[-1] if before else -1)
    assert one.offset == (behind[0] if behind else one.after + 1)


@pytest.mark.long
@given(histories(least=6), st.data())
def test_two_planted_instead_of_each_other_are_found_as_inversion_or_disorder(
    history: History, data: st.DataObject
) -> None:
    same = [
        (one, two)
        for one in _stamped(history)
        for two in _stamped(history)
        if one < two
        and (a := history[one].stamp) is not None
        and (b := history[two].stamp) is not None
        and (a.producer, a.epoch) == (b.producer, b.epoch)
        and b.sequence == a.sequence + 1
    ]
    if not same:
        return
    one, two = data.draw(st.sampled_from(same))
    planted = list(history)
    planted[one], planted[two] = (
        replace(history[two], offset=history[one].offset),
        replace(history[one], offset=history[two].offset),
    )
    (found,) = audited(planted, expected=ends(history)).findings
    one_key = history[one].key is not None and history[one].key == history[two].key
    assert found.kind is (FindingKind.INVERSION if one_key else FindingKind.DISORDER)
    late = history[one].stamp
    assert late is not None
    assert (found.offset, found.first) == (history[two].offset, late.sequence)
    if one_key:
        assert found.after == history[one].offset


def test_a_zombies_record_is_found_though_its_number_is_the_next() -> None:
    history = [*orders(14), Published(14, b"key-2", Stamp("shop-0", 1, 14), 14)]
    assert told(audited(history)) == [("zombie", 14, 14, 14)]


def test_numbers_missing_at_the_end_are_found_by_the_leaders_reports() -> None:
    history = list(orders(10))
    assert told(audited(history, expected={"shop-0": 12})) == [("lost", 10, 10, 12)]
    assert told(audited([], expected={"shop-0": 12})) == [("lost", 0, 0, 12)]
    assert audited(history, expected={"shop-0": 8}).is_clean, "the leaders went on after they were asked"
    assert audited(history, expected={"other-0": 8}).is_clean
    assert audited([], first_offset=50, expected={"shop-0": 12}).is_clean, "all of it was deleted in time"


def test_a_gap_that_was_filled_late_is_no_loss_and_the_rest_of_a_gap_is() -> None:
    numbers = [0, 1, 6, 3, 4, 7]
    history = [Published(at, b"k%d" % at, Stamp("shop-0", 1, number)) for at, number in enumerate(numbers)]
    assert told(audited(history)) == [
        ("lost", 2, 2, 2),
        ("lost", 2, 5, 5),
        ("out-of-order", 3, 3, 3),
        ("out-of-order", 4, 4, 4),
    ]


def test_rows_published_twice_under_new_numbers_are_found_by_the_services_own() -> None:
    history = renumbered([*orders(10), Published(10, b"key-1", Stamp("shop-0", 2, 10), 4)])
    assert audited(history).is_clean, (
        "the stamps are right: a harvester that published a row again would have stamped it so"
    )
    (found,) = audited(history, NUMBERED).findings
    assert (found.kind, found.offset, found.first, found.key, found.after) == (
        FindingKind.DUPLICATE,
        10,
        4,
        "key-1",
        7,
    )
    assert audited(history, msgspec.structs.replace(NUMBERED, at_least_once=True)).repeated == 1


def test_records_without_stamps_are_proved_by_the_services_numbers() -> None:
    """Strategy mark publishes no headers of holdfast's."""
    rules = Rules(number="n", at_least_once=True)
    history = [replace(each, stamp=None) for each in orders(30)]
    repeated = renumbered([*history[:20], *history[14:]])
    found = audited(repeated, rules)
    assert (found.is_clean, found.repeated, found.audited) == (True, 6, 36)
    history[9], history[12] = replace(history[12], offset=9), replace(history[9], offset=12)
    (one,) = audited(history, rules).findings
    assert (one.kind, one.offset, one.after, one.first, one.key) == (FindingKind.INVERSION, 12, 9, 9, "key-0")


def test_a_number_older_than_the_remembered_ones_is_doubtful() -> None:
    history = [Published(at, b"k", None, at) for at in range(LIMIT_NUMBERS + 5)]
    again = [*history, Published(len(history), b"k", None, 2)]
    assert told(audited(again, Rules(number="n"))) == [("doubtful", len(history), 2, 2)]


def test_what_cannot_be_read_is_found() -> None:
    history = list(orders(5))
    bad = replace(history[2], number=None)
    found = audited([*history[:2], bad, *history[3:]], NUMBERED)
    assert [each[:2] for each in told(found)] == [("unreadable", 2), ("lost", 3)]
    assert "n is missing" in found.findings[0].reason


def test_more_holes_than_are_remembered_are_still_all_reported() -> None:
    history = [Published(at, b"k", Stamp("shop-0", 1, 2 * at)) for at in range(LIMIT_HOLES * 2)]
    found = audited(history)
    assert told(found) == [("lost", at, 2 * at - 1, 2 * at - 1) for at in range(1, LIMIT_HOLES * 2)]


@pytest.mark.long
def test_findings_beyond_the_limit_are_counted() -> None:
    stamp = Stamp("shop-0", 1, 0)
    found = audited([Published(at, b"k", stamp) for at in range(LIMIT_FINDINGS + 11)])
    assert (len(found.findings), found.untold, found.is_clean) == (LIMIT_FINDINGS, 10, False)


def test_the_page_names_every_kind_of_finding() -> None:
    found = re.search(r"<!-- audit -->\n.*\n.*\n((?:\|.*\n)+)", PAGE.read_text())
    assert found is not None
    assert re.findall(r"^\| `([a-z-]+)` \|", found[1], re.MULTILINE) == [str(kind) for kind in FindingKind]


def test_records_of_other_programs_are_left_alone() -> None:
    others = [
        Published(10 + at, b"k", Stamp(name, 1, 5)) for at, name in enumerate(("shop-eu-0", "shop", "bank-0"))
    ]
    found = audited([*orders(10), *others])
    assert (found.is_clean, found.audited, found.records, found.producers) == (True, 10, 13, 1)
