"""The leader's table at work:

Kafka's own goldens, transactions, expiry, the wrap, and a naive model that rescans the log.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.kafka.producer_state import (
    CACHED_BATCHES,
    EXPIRATION_MS,
    AbortedTransaction,
    Append,
    AppendOutcome,
    AppendVerdict,
    Code,
    EndMarker,
    HighWatermark,
    LeaderEvent,
    LeaderRow,
    Origin,
    Sweep,
    VerificationBegun,
    aborted_key,
)
from holdfast.core.kafka.sequences import MAX_SEQUENCE, advance, distance, follows
from holdfast.models import partition_leader
from holdfast.models.partition_leader import (
    fold_leader,
    has_late_transaction,
    last_stable_offset,
    verification_of,
)
from tests.models.leading import PID, Log, sequences
from tests.support.places import TESTDATA
from tests.support.proof import DictStore
from tests.support.scale import scaled

VECTORS: dict[str, Any] = json.loads((TESTDATA / "producer_append.json").read_text())


# -- Kafka's own tests


def check_golden(rules: ModuleType = partition_leader) -> None:
    log = Log(rules)
    for each in VECTORS["duplicate_appends"]:
        verdict = log.append(*each["append"])
        assert (verdict.outcome.value, verdict.error) == (each["outcome"], each.get("error", 0)), each
        if verdict.outcome is not AppendOutcome.REFUSED:
            assert (verdict.base_offset, verdict.last_offset) == (
                each["base_offset"],
                each["last_offset"],
            ), each
    assert log.log.end_offset == 10


def test_duplicate_appends_are_answered_as_kafka_does() -> None:
    """I2: UnifiedLogTest.testDuplicateAppends."""
    check_golden()


def test_a_basic_id_mapping_is_answered_as_kafka_does() -> None:
    """I2: UnifiedLogTest / ProducerStateManagerTest.testBasicIdMapping."""
    log = Log()
    assert [log.append(0).outcome, log.append(1).outcome] == [AppendOutcome.ACCEPTED] * 2
    assert log.append(5).error is Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.append(0, epoch=1).outcome is AppendOutcome.ACCEPTED
    assert log.append(2, epoch=0).error is Code.INVALID_PRODUCER_EPOCH


def stable_offsets(rules: ModuleType = partition_leader) -> list[tuple[int | None, int | None]]:
    """Return (first unstable, first undecided) after each event of the golden."""
    log, pids, found = Log(rules), {"A": 1, "B": 2}, []
    for each in VECTORS["last_stable_offset"]:
        offset = each["offset"]
        match each["event"]:
            case "high_watermark":
                log.replicate(offset)
            case "transactional_append":
                pid = pids[each["producer"]]
                log.apply(VerificationBegun(producer_id=pid, epoch=5, sequence=0, at_ms=0))
                log.rows["log"] = msgspec.structs.replace(log.log, end_offset=offset)
                assert (
                    log.append(0, epoch=5, pid=pid, transactional=True, verified=True).outcome
                    is AppendOutcome.ACCEPTED
                )
            case event:
                log.rows["log"] = msgspec.structs.replace(log.log, end_offset=offset)
                verdict = log.marker(commit=event == "commit_marker", epoch=5, pid=pids[each["producer"]])
                assert verdict.outcome is AppendOutcome.ACCEPTED
        undecided = log.log.ongoing[0].first_offset if log.log.ongoing else None
        found.append((log.log.first_unstable, undecided))
    return found


def test_the_last_stable_offset_follows_kafkas_golden_from_events_alone() -> None:
    """I2: ProducerStateManagerTest.testFirstUnstableOffset."""
    assert stable_offsets() == [
        (each["first_unstable"], each["first_undecided"]) for each in VECTORS["last_stable_offset"]
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("each.last_offset >= event.offset\n", "False\n"),
        ("unreplicated = tuple(sorted((*unreplicated, done), key=lambda each: each.first_offset))", "pass"),
        ("if each.first_offset != done.first_offset)", ")"),
    ],
)
def test_a_fault_in_the_last_stable_offset_is_noticed(old: str, new: str) -> None:
    from tests.models.test_producers_page import faulty

    wanted = [(each["first_unstable"], each["first_undecided"]) for each in VECTORS["last_stable_offset"]]
    assert stable_offsets(faulty(partition_leader, old, new)) != wanted


# -- transactions on a partition


def begun(log: Log, pid: int = PID, epoch: int = 0, first: int = 0, **more: Any) -> AppendVerdict:
    log.apply(VerificationBegun(producer_id=pid, epoch=epoch, sequence=first, at_ms=0))
    return log.append(first, pid=pid, epoch=epoch, transactional=True, verified=True, **more)


def test_a_transaction_needs_one_verification_and_leaves_none() -> None:
    log = Log()
    assert log.append(0, transactional=True, verified=True).error is Code.INVALID_TXN_STATE
    assert begun(log).outcome is AppendOutcome.ACCEPTED
    assert verification_of(log.rows, PID) is None
    assert log.append(1, transactional=True).outcome is AppendOutcome.ACCEPTED
    log.apply(VerificationBegun(producer_id=PID, epoch=0, sequence=2, at_ms=0))
    assert verification_of(log.rows, PID) is None, "an open transaction has nothing left to verify"
    log.marker()
    assert log.append(2, transactional=True).error is Code.INVALID_TXN_STATE, (
        "the next transaction is verified anew"
    )


def test_the_lowest_sequence_that_asked_is_the_first_that_may_write() -> None:
    log = Log()
    for epoch, sequence in ((0, 5), (0, 3), (0, 4)):
        log.apply(VerificationBegun(producer_id=PID, epoch=epoch, sequence=sequence, at_ms=0))
    assert log.append(4, transactional=True, verified=True).rule == 4
    assert log.append(3, transactional=True, verified=True).rule == 6
    log = Log()
    for epoch, sequence in ((0, 2), (1, 7), (0, 1)):
        log.apply(VerificationBegun(producer_id=PID, epoch=epoch, sequence=sequence, at_ms=0))
    found = verification_of(log.rows, PID)
    assert found is not None
    assert (found.epoch, found.lowest_sequence) == (1, 7)


def test_an_aborted_transaction_is_listed_with_what_readers_must_skip() -> None:
    log = Log()
    begun(log, pid=1)
    begun(log, pid=2)
    log.append(1, pid=1, transactional=True)
    log.marker(pid=1, commit=False)
    log.marker(pid=2, commit=False)
    assert log.rows.get(aborted_key(3)) == AbortedTransaction(1, 0, 3, 1)
    assert log.rows.get(aborted_key(4)) == AbortedTransaction(2, 1, 4, 5)
    assert last_stable_offset(log.rows) == 0
    log.replicate(4)
    assert last_stable_offset(log.rows) == 1, "the marker at 4 is not yet below the high watermark"
    log.replicate(5)
    assert last_stable_offset(log.rows) == 5


def test_a_marker_without_a_transaction_here_fences_and_holds_no_reader_back() -> None:
    log = Log()
    assert log.marker(epoch=4, commit=False).rule == 13
    assert log.log.unreplicated == ()
    assert list(log.rows.scan("a/")) == []
    assert log.append(0, epoch=3).error is Code.INVALID_PRODUCER_EPOCH
    assert log.append(1, epoch=4).rule == 9
    assert log.append(0, epoch=4).rule == 8


def test_a_replicated_batch_was_checked_before() -> None:
    log = Log()
    log.append(0, epoch=5)
    replica: dict[str, Any] = {"origin": Origin.REPLICATION}
    assert log.append(77, 78, epoch=5, **replica).outcome is AppendOutcome.ACCEPTED
    assert log.append(3, epoch=4, transactional=True, **replica).outcome is AppendOutcome.ACCEPTED
    assert log.marker(epoch=3, **replica).outcome is AppendOutcome.ACCEPTED


def test_the_coordinators_own_writes_have_epochs_and_no_sequences() -> None:
    log = Log()
    own: dict[str, Any] = {"origin": Origin.COORDINATOR, "transactional": True}
    assert log.append(-1, epoch=2, **own).error is Code.INVALID_TXN_STATE
    log.apply(VerificationBegun(producer_id=PID, epoch=2, sequence=-1, at_ms=0))
    assert log.append(-1, epoch=2, verified=True, **own).outcome is AppendOutcome.ACCEPTED
    assert log.append(-1, epoch=2, **own).outcome is AppendOutcome.ACCEPTED, (
        "no duplicate: it has no sequences to compare"
    )
    assert log.append(-1, epoch=1, verified=True, **own).error is not Code.NONE


# -- forgetting


def test_an_idle_producer_is_forgotten_and_may_then_begin_anywhere() -> None:
    """I2: KIP-360."""
    log = Log()
    log.append(0, at_ms=1_000)
    log.apply(Sweep(now_ms=1_000 + EXPIRATION_MS - 1))
    assert log.append(9).rule == 10
    log.apply(Sweep(now_ms=1_000 + EXPIRATION_MS))
    assert log.entry() is None
    assert log.append(9, at_ms=5).rule == 6


def test_a_producer_in_a_transaction_is_not_forgotten_and_shows_as_late() -> None:
    log = Log()
    begun(log, at_ms=1_000)
    log.apply(Sweep(now_ms=10 * EXPIRATION_MS))
    assert log.entry() is not None
    assert not has_late_transaction(log.rows, 1_000 + 1_200_000)
    assert has_late_transaction(log.rows, 1_000 + 1_200_001)
    log.marker(at_ms=2_000)
    assert not has_late_transaction(log.rows, 10 * EXPIRATION_MS)
    log.apply(Sweep(now_ms=10 * EXPIRATION_MS))
    assert log.entry() is None


def test_a_verification_that_led_to_nothing_is_forgotten_too() -> None:
    log = Log()
    log.apply(VerificationBegun(producer_id=PID, epoch=0, sequence=0, at_ms=500))
    log.apply(Sweep(now_ms=499 + EXPIRATION_MS))
    assert verification_of(log.rows, PID) is not None
    log.apply(Sweep(now_ms=500 + EXPIRATION_MS))
    assert verification_of(log.rows, PID) is None


# -- the wrap


@pytest.mark.parametrize("before_wrap", range(1, 8))
def test_sequences_continue_at_0_after_the_largest_wherever_batches_are_cut(before_wrap: int) -> None:
    log, first = Log(), MAX_SEQUENCE - before_wrap + 1
    log.append(first, MAX_SEQUENCE - before_wrap + 1)
    at = advance(first, 1)
    sent = []
    for size in (3, 2, 4, 1, 5):
        span = sequences(at, size)
        assert log.append(*span).outcome is AppendOutcome.ACCEPTED
        sent.append(span)
        at = advance(at, size)
    assert all(log.append(*span).outcome is AppendOutcome.DUPLICATE for span in sent[-4:])
    assert log.append(advance(at, 1)).error is Code.OUT_OF_ORDER_SEQUENCE_NUMBER


@given(st.integers(0, MAX_SEQUENCE), st.integers(0, 1 << 29))
def test_the_arithmetic_of_sequences_is_modulo_2_to_the_31(sequence: int, by: int) -> None:
    assert advance(sequence, by) == (sequence + by) % (1 << 31)
    assert distance(sequence, advance(sequence, by)) == by
    assert distance(advance(sequence, by), sequence) == -by
    assert follows(sequence, advance(sequence, 1))
    assert not follows(sequence, advance(sequence, 2))


# -- against a model that keeps nothing but the log


class Rescan:
    """Idempotent producers as the rules define them, computed again from all batches ever accepted, for each
    batch.
    """

    def __init__(self) -> None:
        self.accepted: list[Append] = []

    def answer(self, batch: Append) -> tuple[str, int, int]:
        mine = [each for each in self.accepted if each.producer_id == batch.producer_id]
        epoch = max((each.epoch for each in mine), default=-1)
        recent = [each for each in mine if each.epoch == epoch][-CACHED_BATCHES:]
        for each in recent:
            same = (each.epoch, each.first_sequence, each.last_sequence) == (
                batch.epoch,
                batch.first_sequence,
                batch.last_sequence,
            )
            if same:
                return "duplicate", 0, each.base_offset
        if batch.epoch < epoch:
            return "error", 47, -1
        expected = (
            None if not mine else 0 if batch.epoch > epoch else (recent[-1].last_sequence + 1) % (1 << 31)
        )
        if expected is not None and batch.first_sequence != expected:
            return "error", 45, -1
        self.accepted.append(batch)
        return "accepted", 0, batch.base_offset


sends = st.lists(
    st.tuples(
        st.sampled_from([1, 2]),
        st.integers(-1, 1),  # epoch, relative to the producer's
        st.sampled_from(["next", "next", "next", "again", "again", "zero", "gap", "older"]),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=60,
)


@given(sends, st.sampled_from([0, MAX_SEQUENCE - 5]))
@settings(max_examples=scaled(200))
def test_the_incremental_fold_answers_as_a_rescan_of_the_log_does(
    steps: list[tuple[int, int, str, int]], start: int
) -> None:
    log, model = Log(), Rescan()
    at = {pid: (0, start) for pid in (1, 2)}
    sent: dict[int, list[tuple[int, int, int]]] = {
        1: [(0, *sequences(start, 1))],
        2: [(0, *sequences(start, 1))],
    }
    for pid, turn, kind, size in steps:
        epoch, expected = at[pid]
        epoch = max(0, epoch + turn)
        span = {
            "next": sequences(expected, size),
            "zero": sequences(0, size),
            "gap": sequences(advance(expected, size), 1),
            "older": sequences(advance(expected, -size), size),
            "again": sent[pid][-size % len(sent[pid])][1:],
        }[kind]
        base = log.log.end_offset
        batch = Append(
            producer_id=pid,
            epoch=epoch,
            first_sequence=span[0],
            last_sequence=span[1],
            base_offset=base,
            last_offset=base + (span[1] - span[0] & MAX_SEQUENCE),
        )
        verdict = log.apply(batch)
        assert verdict is not None
        assert (verdict.outcome.value, int(verdict.error), verdict.base_offset) == model.answer(batch), (
            batch,
            log.entry(pid),
        )
        if verdict.outcome is AppendOutcome.ACCEPTED:
            at[pid] = (epoch, advance(span[1], 1))
            sent[pid].append((epoch, *span))


# -- live as replayed


EVENTS: list[LeaderEvent] = [
    *(Append(producer_id=pid, epoch=0, first_sequence=at, last_sequence=at, base_offset=2 * at + pid, last_offset=2 * at + pid) for at in range(9) for pid in (0, 1)),  # noqa: E501
    VerificationBegun(producer_id=5, epoch=1, sequence=0, at_ms=9),
    Append(producer_id=5, epoch=1, first_sequence=0, last_sequence=3, base_offset=18, last_offset=21, transactional=True, verified=True),  # noqa: E501
    EndMarker(producer_id=5, epoch=1, commit=False, coordinator_epoch=3, offset=22, timestamp_ms=50),
    HighWatermark(offset=23),
    Append(producer_id=1, epoch=1, first_sequence=0, last_sequence=0, base_offset=23, last_offset=23),
    Sweep(now_ms=EXPIRATION_MS - 2),
]  # fmt: skip


@given(st.lists(st.integers(1, 9), max_size=6))
def test_a_log_of_events_folds_to_the_same_bytes_however_it_is_cut(cuts: list[int]) -> None:
    decoder = msgspec.msgpack.Decoder(LeaderEvent)
    processor: Processor[LeaderEvent, LeaderRow] = Processor(
        name="leader", source="events", decode=decoder.decode, fold=fold_leader, row=LeaderRow
    )
    values = [msgspec.msgpack.encode(event) for event in EVENTS]
    states = []
    for sizes in ([len(values)], [*cuts, len(values)]):
        store = DictStore()
        folder, at = Folder(processor, store), 0
        for size in sizes:
            part = values[at : at + size]
            if not part:
                continue
            changes = folder.fold([Batch(range(at, at + len(part)), [7] * len(part), (part,))])
            assert changes is not None
            assert changes.refused == []
            for key, value in changes.puts:
                if value is None:
                    store.state.pop(key, None)
                else:
                    store.state[key] = value
            folder.commit()
            at += len(part)
        states.append(store.state)
    assert states[0] == states[1]
    assert len(states[0]) == 5  # three producers, the log, one aborted transaction


def test_nothing_is_kept_of_a_producer_without_an_id() -> None:
    log = Log()
    for _ in range(2):
        assert log.append(-1, pid=-1, epoch=-1).outcome is AppendOutcome.ACCEPTED
    assert log.log.end_offset == 2
    assert list(log.rows.scan("p/")) == []
