"""Commits in any order: the offset to commit is the first that is not done, whatever the form in which
offsets come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.member.claim import tracking
from holdfast.core.member.claim.tracking import Tracker
from holdfast.errors import CommitError
from tests.support.scale import scaled


def test_commits_out_of_order_advance_to_the_first_hole() -> None:
    """M7: commits 1, 3, 2, 4, 5, 6 of m1..m6 give Current 1, 1, 3, 4, 5, 6."""
    tracker = Tracker(0)
    tracker.deliver(range(6))
    seen = []
    for message in (1, 3, 2, 4, 5, 6):
        assert tracker.commit(message - 1)
        seen.append(tracker.current)
    assert seen == [1, 1, 3, 4, 5, 6]
    assert tracker.outstanding == 0


def test_an_offset_that_was_never_delivered_is_an_error_and_changes_nothing() -> None:
    """M7: commit of offset 95."""
    tracker = Tracker(0)
    tracker.deliver(range(6))
    with pytest.raises(CommitError, match="never delivered"):
        tracker.commit(95)
    with pytest.raises(CommitError, match="never delivered"):
        tracker.commit_many([2, 95])
    with pytest.raises(CommitError, match="not all delivered"):
        tracker.commit_many(range(4, 9))
    assert (tracker.current, tracker.outstanding) == (0, 6)


def test_the_same_commit_twice_counts_once() -> None:
    """M7, D13: committing offset 0 twice leaves the outstanding messages unchanged the second time."""
    tracker = Tracker(0)
    tracker.deliver(range(3))
    assert tracker.commit(0)
    assert not tracker.commit(0)
    assert tracker.outstanding == 2
    assert tracker.commit(2)
    assert not tracker.commit(2)
    assert tracker.outstanding == 1
    assert tracker.commit_many(range(3)) == 1
    assert (tracker.current, tracker.outstanding) == (3, 0)


def test_offsets_before_the_start_were_never_delivered() -> None:
    tracker = Tracker(10)
    tracker.deliver(range(10, 12))
    with pytest.raises(CommitError):
        tracker.commit(9)


def test_holes_are_skipped_once_nothing_before_them_is_outstanding() -> None:
    tracker = Tracker(0)
    tracker.deliver([3, 7, 8])
    tracker.skip_to(20)
    assert tracker.current == 3
    tracker.commit_many([7, 8])
    assert tracker.current == 3
    tracker.commit(3)
    assert tracker.current == 20
    tracker.skip_to(5)
    assert tracker.current == 20


def test_an_offset_that_was_not_handed_out_after_all_is_withdrawn() -> None:
    tracker = Tracker(0)
    tracker.deliver(range(10))
    tracker.deliver([12, 15])
    tracker.commit_many(range(2))
    tracker.withdraw(5)
    assert (tracker.current, tracker.outstanding, tracker.position) == (2, 3, 5)
    with pytest.raises(CommitError):
        tracker.commit(5)
    tracker.commit_many(range(2, 5))
    assert tracker.current == 5
    tracker.deliver(range(5, 6))
    assert tracker.outstanding == 1


def test_finished_offsets_are_still_known_when_the_rest_of_their_block_is_withdrawn() -> None:
    tracker = Tracker(0)
    tracker.deliver(range(4))
    tracker.deliver([4, 6, 8])
    tracker.commit_many([4, 6, 8])
    tracker.withdraw(7)
    assert (tracker.commit(4), tracker.current, tracker.outstanding, tracker.position) == (False, 0, 4, 7)
    tracker.commit_many(range(4))
    assert (tracker.current, tracker.outstanding) == (7, 0)


def test_what_comes_out_of_order_from_the_fetch_is_a_bug() -> None:
    tracker = Tracker(5)
    with pytest.raises(AssertionError):
        tracker.deliver(range(4, 8))
    with pytest.raises(AssertionError):
        tracker.deliver([8, 7])


Step = tuple[str, Any]

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.lists(st.integers(1, 3), min_size=1, max_size=24)),
        st.tuples(st.just("range"), st.integers(1, 30)),
        st.tuples(st.just("commit"), st.integers(0, 1_000)),
        st.tuples(st.just("commit list"), st.lists(st.integers(0, 1_000), min_size=1, max_size=12)),
        st.tuples(st.just("commit range"), st.tuples(st.integers(0, 1_000), st.integers(0, 1_000))),
        st.tuples(st.just("batch"), st.integers(0, 1_000)),
        st.tuples(st.just("skip"), st.integers(0, 5)),
        st.tuples(st.just("withdraw"), st.integers(0, 1_000)),
    ),
    max_size=40,
)


def against_the_model(steps: list[Step], new: Callable[[int], Tracker] = Tracker) -> None:
    """Run *steps* on a tracker and on a dict with an entry for each offset, which is what the Go library
    keeps.
    """
    tracker, model, start, position = new(100), dict[int, bool](), 100, 100
    batches: list[list[int]] = []

    def current() -> int:
        return next((offset for offset in sorted(model) if not model[offset]), position)

    for verb, told in steps:
        known = sorted(model)
        if verb == "deliver" or verb == "range":
            offsets = list(range(position, position + told)) if verb == "range" else []
            if verb == "deliver":
                at = position - 1
                for gap in told:
                    at += gap
                    offsets.append(at)
            tracker.deliver(range(position, position + told) if verb == "range" else offsets)
            model.update(dict.fromkeys(offsets, False))
            batches.append(offsets)
            position = offsets[-1] + 1
        elif verb == "skip":
            position += told
            tracker.skip_to(position)
        elif verb == "commit" and known:
            offset = known[told % len(known)]
            assert tracker.commit(offset) == (not model[offset])
            model[offset] = True
        elif verb == "commit list" and known:
            chosen = list(dict.fromkeys(known[each % len(known)] for each in told))
            assert tracker.commit_many(chosen) == sum(not model[offset] for offset in chosen)
            model.update(dict.fromkeys(chosen, True))
        elif verb == "commit range" and position > start:
            low, high = sorted(start + each % (position - start + 1) for each in told)
            within = [offset for offset in known if low <= offset < high]
            assert tracker.commit_many(range(low, high)) == sum(not model[offset] for offset in within)
            model.update(dict.fromkeys(within, True))
        elif verb == "batch" and batches:
            batch = [offset for offset in batches[told % len(batches)] if offset in model]
            assert tracker.commit_many(batch) == sum(not model[offset] for offset in batch)
            model.update(dict.fromkeys(batch, True))
        elif verb == "withdraw":
            floor = current()
            position = min(position, floor + told % (position - floor + 1))
            tracker.withdraw(position)
            model = {offset: done for offset, done in model.items() if offset < position}
        assert tracker.current == current()
        assert tracker.outstanding == sum(not done for done in model.values())
        assert tracker.position == position


@settings(max_examples=scaled(300))
@given(STEPS)
def test_a_tracker_holds_what_an_entry_for_each_offset_would(steps: list[Step]) -> None:
    against_the_model(steps)


@settings(max_examples=scaled(150))
@given(STEPS)
def test_small_blocks_hold_the_same(steps: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracking, "LIMIT_BLOCK", 5)
        patch.setattr(tracking, "LIMIT_SMALL", 2)
        patch.setattr(tracking, "LIMIT_POPPED", 1)
        against_the_model(steps)


class _Hasty(Tracker):
    """Commits everything up to the offset: what a client does that only notes the last message."""

    def commit(self, offset: int) -> bool:
        fresh = super().commit(offset)
        self.commit_many(range(self.current, offset))
        return fresh


def test_a_tracker_that_commits_too_much_is_found_out() -> None:
    with pytest.raises(AssertionError):
        against_the_model([("range", 5), ("commit", 3)], _Hasty)
