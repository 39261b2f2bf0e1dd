"""docs/producers.md against the code: each row of its tables is executed, no row is missing, and a changed
rule is noticed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from holdfast.core.engine.state.codec import RowCodec
from holdfast.core.kafka import producer_state, transaction_state
from holdfast.core.kafka.producer_state import (
    EXPIRATION_MS,
    LATE_TRANSACTION_BUFFER_MS,
    MAX_TRANSACTION_TIMEOUT_MS,
    AppendOutcome,
    Code,
)
from holdfast.core.kafka.transaction_state import (
    ALLOWED_PREVIOUS,
    EXHAUSTED_EPOCH,
    MAY_EXPIRE,
    TRANSACTIONAL_ID_EXPIRATION_MS,
    EndTransaction,
    Transaction,
    TransactionState,
    transaction_key,
)
from holdfast.core.producers import ledger
from holdfast.core.producers.stamps import Stamp
from holdfast.models import partition_leader, transaction_coordinator
from tests.models.leading import PID, Desk, Log, arriving, known
from tests.support.places import DOCS

PAGE = (DOCS / "producers.md").read_text()

Row = dict[str, str]


def table(name: str, page: str = PAGE) -> list[Row]:
    """Return the rows of the table marked *name* by column."""
    found = re.search(rf"^<!-- {name} -->\n(.*?)^<!-- end -->", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no table {name}"
    head, _, *lines = [
        [cell.strip() for cell in line.strip().strip("|").split("|")] for line in found[1].splitlines()
    ]
    return [dict(zip(head, line, strict=True)) for line in lines]


# -- the leader's table

LEADER = table("leader")


def check_leader(row: Row, rules: ModuleType = partition_leader) -> None:
    log = Log(rules)
    told = known(row["Known here"])
    for key, value in told.rows.scan():
        log.rows[key] = value
    before = log.state()
    event = arriving(row["Arrives"], log.log.end_offset)
    verdict = log.apply(event)
    assert verdict is not None
    assert verdict.rule == int(row["#"]), row
    entry = log.entry()
    match row["Answer"].replace(",", "").split(" "):
        case ["accepted", *more]:
            assert (verdict.outcome, verdict.error) == (AppendOutcome.ACCEPTED, Code.NONE)
            assert entry is not None
            assert entry.epoch == event.epoch
            assert log.log.end_offset == verdict.last_offset + 1
            if isinstance(event, producer_state.Append):
                assert entry.last_sequence == event.last_sequence
            else:
                assert entry.txn_first_offset is None
                assert (entry.batches == ()) is bool(more)
        case ["duplicate", "of", batch]:
            first, last = map(int, batch.split("-"))
            (found,) = (
                [each for each in entry.batches if (each.first_sequence, each.last_sequence) == (first, last)]
                if entry
                else []
            )
            assert verdict.outcome is AppendOutcome.DUPLICATE
            assert (verdict.base_offset, verdict.last_offset, verdict.timestamp_ms) == (
                found.first_offset,
                found.last_offset,
                7,
            )
            assert log.state() == before
        case [code]:
            assert (verdict.outcome, verdict.error.name, verdict.reason != "") == (
                AppendOutcome.REFUSED,
                code,
                True,
            ), row
            assert log.state() == before
        case other:
            raise AssertionError(f"the page says {other}")


@pytest.mark.parametrize("row", LEADER, ids=lambda row: f"{row['#']} {row['Known here']} {row['Arrives']}")
def test_each_row_of_the_leaders_table_does_what_the_page_says(row: Row) -> None:
    """I2: the table."""
    check_leader(row)


def test_the_page_has_all_13_rows_in_order() -> None:
    numbers = [int(row["#"]) for row in LEADER]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, 14))
    assert f"{EXPIRATION_MS:,} ms" in PAGE
    assert (
        f"{LATE_TRANSACTION_BUFFER_MS:,} ms longer than the largest timeout"
        f" ({MAX_TRANSACTION_TIMEOUT_MS:,} ms)" in PAGE
    )
    assert f"idle for {TRANSACTIONAL_ID_EXPIRATION_MS:,} ms" in PAGE
    assert f"After epoch {EXHAUSTED_EPOCH:,} comes the next producer id" in PAGE


FAULTS = [
    # (rows of the table that must notice, the code, the planted fault)
    (1, "if client and known.epoch == batch.epoch:", "if client and False:"),
    (10, "(batch.first_sequence, batch.last_sequence):", "(batch.first_sequence, each.last_sequence):"),
    (3, "if client and known.epoch == batch.epoch:", "if client:"),
    (2, "and not (batch.verified and verification is not None)", "and not batch.verified"),
    (
        2,
        "batch.origin is not Origin.REPLICATION\n        and unknown_transaction",
        "unknown_transaction and False",
    ),
    (2, "not (open_here and known.epoch == batch.epoch)", "not open_here"),
    (3, "if batch.epoch < known.epoch and batch.origin", "if batch.epoch < known.epoch - 1 and batch.origin"),
    (4, "first > verification.lowest_sequence", "first > verification.lowest_sequence + 1"),
    (6, "first > verification.lowest_sequence", "first >= verification.lowest_sequence"),
    (5, "return 5 if first == 0", "return 5 if first == 1"),
    (6, "else 6 if known.epoch == NO_EPOCH else 7", "else 7"),
    (7, "else 6 if known.epoch == NO_EPOCH else 7", "else 6"),
    (8, "if follows(last, first):", "if first == last + 1:"),
    (9, "return 9 if last == NO_SEQUENCE else 10", "return 8 if last == NO_SEQUENCE else 10"),
    (10, "return 9 if last == NO_SEQUENCE else 10", "return 9 if last == NO_SEQUENCE else 8"),
    (11, "if open_here and not batch.transactional:", "if False:"),
    (12, "if marker.epoch < known.epoch and checked:", "if False:"),
    (
        12,
        "marker.coordinator_epoch < known.coordinator_epoch and",
        "marker.coordinator_epoch <= known.coordinator_epoch and",
    ),
    (12, "marker.coordinator_epoch < known.coordinator_epoch and", "False and"),
    (13, "known.batches if marker.epoch == known.epoch else ()", "known.batches"),
    (5, "kept = known.batches if known.epoch == batch.epoch else ()", "kept = ()"),
    (1, "[-CACHED_BATCHES:]", "[-1:]"),
]


def faulty(module: ModuleType, old: str, new: str) -> ModuleType:
    """Return a copy of *module* with *new* instead of *old*."""
    source = Path(str(module.__file__)).read_text()
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    copy = ModuleType("faulty")
    sys.modules["faulty"] = copy
    try:
        exec(compile(source.replace(old, new), str(module.__file__), "exec"), copy.__dict__)  # noqa: S102  our own source, with one place changed
    finally:
        del sys.modules["faulty"]
    return copy


@pytest.mark.parametrize(("number", "old", "new"), FAULTS)
def test_a_fault_planted_in_a_row_of_the_table_is_noticed(number: int, old: str, new: str) -> None:
    """I2: the check of each row can fail, by the page or by the golden run."""
    from tests.models.test_partition_leader import check_golden

    rules = faulty(partition_leader, old, new)
    noticed = set()
    for row in LEADER:
        try:
            check_leader(row, rules)
        except AssertionError:
            noticed.add(int(row["#"]))
    try:
        check_golden(rules)
    except AssertionError:
        noticed.add(number)
    assert number in noticed, f"noticed by {sorted(noticed)} only"


def test_every_row_of_the_table_has_a_planted_fault() -> None:
    assert {number for number, _, _ in FAULTS} == set(range(1, 14))


# -- the coordinator's tables


def test_the_states_are_those_of_the_page() -> None:
    rows = table("states")
    assert [(row["State"], int(row["Number"])) for row in rows] == [
        (state.name, state.value) for state in TransactionState
    ]
    for row in rows:
        state = TransactionState[row["State"]]
        assert {TransactionState[name] for name in row["Comes from"].split(", ")} == ALLOWED_PREVIOUS[state]
        assert (row["May be forgotten when idle"] == "yes") is (state in MAY_EXPIRE)


ENDS = table("end-transaction")
COLUMNS = {
    "Version 1, this epoch": (1, 0),
    "Version 2, this epoch": (2, 0),
    "Version 2, the epoch before": (2, -1),
}


def check_ends(rows: list[Row], rules: ModuleType = transaction_coordinator) -> None:
    for row, column in product(rows, COLUMNS):
        check_end(row, column, rules)


def check_end(row: Row, column: str, rules: ModuleType = transaction_coordinator) -> None:
    version, back = COLUMNS[column]
    desk = Desk(rules)
    before = Transaction(
        PID, 60_000, 500, epoch=7, last_epoch=6, state=TransactionState[row["State"]], partitions=(("t", 0),)
    )
    desk.rows[transaction_key("pay")] = before
    command = EndTransaction(
        transactional_id="pay",
        producer_id=PID,
        epoch=7 + back,
        commit=row["Asked"] == "commit",
        client_version=version,
    )
    answer, after = desk.do(command), desk.row()
    if found := re.fullmatch(r"to (\w+)(, epoch \+ 1)?", row[column]):
        assert (answer.error, after.state.name) == (Code.NONE, found[1]), row
        assert (answer.producer_id, answer.epoch, after.epoch) == (
            PID,
            7 + bool(found[2]),
            7 + bool(found[2]),
        )
        assert after.partitions == before.partitions
        return
    assert after == before
    assert answer.error == (Code.NONE if row[column] == "done" else Code[row[column]]), (row, column)


@pytest.mark.parametrize("row", ENDS, ids=lambda row: f"{row['State']} {row['Asked']}")
@pytest.mark.parametrize("column", COLUMNS)
def test_each_end_of_a_transaction_is_answered_as_the_page_says(row: Row, column: str) -> None:
    check_end(row, column)


def test_the_page_describes_every_end() -> None:
    states = [
        state
        for state in TransactionState
        if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
    ]
    assert [(row["State"], row["Asked"]) for row in ENDS] == [
        (state.name, ask) for state, ask in product(states, ("commit", "abort"))
    ]


def spoiled_pages() -> Iterator[Row]:
    """Yield each row of the table of ends with one answer that is another than the code's."""
    for row in ENDS:
        for column in COLUMNS:
            yield {**row, column: "done" if row[column] != "done" else "PRODUCER_FENCED"}


def test_a_changed_answer_of_the_page_is_noticed() -> None:
    for row in spoiled_pages():
        with pytest.raises(AssertionError):
            check_ends([row])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if known.state is wanted[1] and again is own_epochs:", "if known.state is wanted[1]:"),
        ("or (own_epochs and known.state in PREPARED)):", "):"),
        (
            "epoch=known.epoch + 1, last_epoch=known.epoch, next",
            "epoch=known.epoch, last_epoch=known.epoch, next",
        ),
        ("if known.state is wanted[0]:", "if known.state in PREPARED:"),
    ],
)
def test_a_fault_planted_in_the_coordinator_is_noticed(old: str, new: str) -> None:
    rules = faulty(transaction_coordinator, old, new)
    with pytest.raises(AssertionError):
        check_ends(ENDS, rules)


def test_rows_of_leaders_and_coordinators_are_read_as_they_were_written() -> None:
    leading: RowCodec[producer_state.LeaderRow] = RowCodec(producer_state.LeaderRow)
    for row in known("epoch 3 open by coordinator 5: 0-2 3-5").state().values():
        assert leading.canonical(row) == row
    coordinating: RowCodec[transaction_state.CoordinatorRow] = RowCodec(transaction_state.CoordinatorRow)
    kept = Transaction(1, 2, 3, partitions=(("a", 1), ("b", 0)), pending_state=TransactionState.ONGOING)
    assert coordinating.canonical(kept) == kept
    assert msgspec.structs.replace(kept, epoch=EXHAUSTED_EPOCH).is_exhausted


# -- the books


def check_judgement(row: Row) -> None:
    book: ledger.Book | None = None
    if found := re.fullmatch(
        r"epoch (\d+), up to (\d+)(?:, (\d+) missing)?(?:, forgotten up to (\d+))?", row["Ledger"]
    ):
        hole = () if found[3] is None else (ledger.Hole(int(found[3]), int(found[3])),)
        forgotten = -1 if found[4] is None else int(found[4])
        book = ledger.Book(
            int(found[1]), int(found[2]), 5, 0, 6, 0, 0, ledger.Faults(holes=hole, forgotten=forgotten)
        )
    found = re.fullmatch(r"epoch (\d+), number (\d+)(?:, first (\d+))?", row["Record"])
    assert found is not None, row
    stamp = Stamp("p", int(found[1]), int(found[2]), None if found[3] is None else int(found[3]))
    judgement = ledger.judge(book, stamp)
    assert (judgement.value, "yes" if judgement in ledger.KEPT else "no") == (
        row["Judgement"],
        row["Sent on"],
    ), row
    after = ledger.enter(book, stamp, judgement, 6, 1)
    assert after.epoch == (
        book.epoch if book is not None and judgement is ledger.Judgement.ZOMBIE else stamp.epoch
    )


@pytest.mark.parametrize("row", table("judgements"), ids=lambda row: f"{row['Ledger']}: {row['Record']}")
def test_each_record_is_judged_as_the_page_says(row: Row) -> None:
    check_judgement(row)


def test_the_page_names_every_judgement_and_a_changed_one_is_noticed() -> None:
    rows = table("judgements")
    assert {row["Judgement"] for row in rows} == {each.value for each in ledger.Judgement}
    assert f"lists {ledger.LIMIT_HOLES} ranges" in PAGE
    for row in rows:
        with pytest.raises(AssertionError):
            check_judgement({**row, "Sent on": "no" if row["Sent on"] == "yes" else "yes"})
