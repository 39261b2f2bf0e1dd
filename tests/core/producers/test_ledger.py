"""Stamps, the books of a stamped topic, clean topics, the registry of names, and what outboxes say of
themselves.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agents.services import bookkeeper
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Emit, Headers, Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.kafka.sequences import MAX_SEQUENCE, advance
from holdfast.core.producers import cleaning, ledger, registry, stamps
from holdfast.core.producers.cleaning import Whole, decode_verdict
from holdfast.core.producers.ledger import (
    KEPT,
    LIMIT_HOLES,
    Book,
    Hole,
    Judgement,
    Totals,
    book_key,
    judge,
    totals_of,
)
from holdfast.core.producers.registry import (
    Bump,
    ReceivedCommand,
    Register,
    Registration,
    RegistryAnswer,
    RegistryError,
    name_key,
    obey,
)
from holdfast.core.producers.stamps import Stamp, read_stamp, stamp_headers
from holdfast.errors import ConfigError, DecodeError
from tests.models.leading import NoStore, empty_rows
from tests.support.scale import scaled

J = Judgement

# -- stamps


@given(
    st.builds(
        Stamp,
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
        st.integers(0, stamps.LIMIT_EPOCH - 1),
        st.integers(0, MAX_SEQUENCE),
        st.none() | st.integers(0, MAX_SEQUENCE),
    )
)
def test_a_stamp_is_read_as_it_was_written_among_other_headers(stamp: Stamp) -> None:
    assert read_stamp((("other", b"x"), *stamp_headers(stamp), ("null", None))) == stamp


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        ({stamps.PRODUCER: b""}, "names its producer"),
        ({stamps.PRODUCER: b"x" * 250}, "names its producer"),
        ({stamps.PRODUCER: b"\xff"}, "UTF-8"),
        ({stamps.EPOCH: None}, "holdfast-epoch is missing"),
        ({stamps.EPOCH: b"-1"}, "holdfast-epoch b'-1' is not"),
        ({stamps.EPOCH: b"9" * 19}, "below"),
        ({stamps.SEQUENCE: None}, "holdfast-sequence is missing"),
        ({stamps.SEQUENCE: b""}, "not a number"),
        ({stamps.SEQUENCE: b"2147483648"}, "below 2\\^31"),
        ({stamps.SEQUENCE: b"1" * 5_000}, "below 2\\^31"),
        ({stamps.FIRST: b"x"}, "holdfast-first"),
    ],
)
def test_a_stamp_that_is_not_whole_is_refused_with_the_fault(
    spoiled: dict[str, bytes | None], why: str
) -> None:
    given_headers: dict[str, bytes | None] = dict(stamp_headers(Stamp("p", 1, 2))) | spoiled
    with pytest.raises(DecodeError, match=why):
        read_stamp(tuple(given_headers.items()))


def test_a_record_without_any_of_it_has_no_stamp() -> None:
    assert read_stamp(()) is None
    assert read_stamp((("trace", b"1"), (stamps.FIRST, b"0"))) is None


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 250, "\x00"])
def test_a_name_that_no_stamp_could_carry_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        stamps.check_name(name)


# -- books


class Page:
    """The books of one partition, and the verdicts."""

    def __init__(self) -> None:
        self.rows: Any = empty_rows(ledger.BookRow)
        self.offset = -1

    def come(self, sequence: int, epoch: int = 1, first: int | None = None, producer: str = "p") -> Judgement:
        self.offset += 1
        return ledger.record(
            self.rows, Stamp(producer, epoch, sequence, first), self.offset, 1_000 + self.offset
        )[1]

    def all(self, *sequences: int, **more: Any) -> list[str]:
        return [self.come(each, **more).value for each in sequences]

    def book(self, producer: str = "p") -> Book:
        found = self.rows.get(book_key(producer))
        assert isinstance(found, Book)
        return found


def test_a_producer_that_behaves_leaves_a_plain_book() -> None:
    page = Page()
    assert set(page.all(*range(5, 50))) == {"new"}
    assert page.book() == Book(1, 49, 44, 1_044, 45, 5, 0)
    assert totals_of(page.rows) == Totals(producers=1)


def test_what_comes_twice_late_or_never_is_in_the_book() -> None:
    page = Page()
    assert page.all(0, 1, 1, 5, 3, 3, 6, 2) == [
        "new",
        "new",
        "duplicate",
        "gap",
        "out-of-order",
        "duplicate",
        "new",
        "out-of-order",
    ]
    book = page.book()
    assert (book.last_sequence, book.records, book.faults.gaps, book.faults.late, book.faults.duplicates) == (
        6,
        6,
        1,
        2,
        2,
    )
    assert (book.faults.holes, book.faults.missing) == ((Hole(4, 4),), 1)
    assert book.faults.trouble == ledger.LedgerTrouble(J.LATE, 7, 1_007, 1, 2)
    assert totals_of(page.rows) == Totals(producers=1, gaps=1, missing=1, late=2, duplicates=2)


def test_a_newer_epoch_fences_the_older_and_continues_its_count() -> None:
    page = Page()
    assert page.all(0, 1, 2) == ["new"] * 3
    assert page.all(3, 4, epoch=2) == ["new"] * 2
    assert page.all(5, 3, epoch=1) == ["zombie"] * 2
    assert page.all(4, 5, epoch=3) == ["duplicate", "new"], (
        "the successor sends again what it was not sure of"
    )
    assert page.come(6, epoch=2) is J.ZOMBIE, "a duplicate fences as well"
    book = page.book()
    assert (
        book.epoch,
        book.last_sequence,
        book.faults.zombies,
        book.faults.duplicates,
        book.faults.restarts,
    ) == (3, 5, 3, 1, 0)


def test_an_epoch_that_counts_from_0_says_so_and_voids_the_old_numbers() -> None:
    page = Page()
    assert page.all(0, 1, 5) == ["new", "new", "gap"]
    assert page.all(0, 1, epoch=2, first=0) == ["new", "new"]
    assert page.come(3, epoch=1) is J.ZOMBIE
    assert (
        page.book().faults.restarts,
        page.book().faults.holes,
        page.book().first_sequence,
        page.book().last_sequence,
    ) == (1, (), 0, 1)
    assert page.all(2, 4, epoch=3, first=0) == ["gap", "gap"]
    assert page.book().faults.holes == (Hole(0, 1), Hole(3, 3))
    assert page.all(1, 0, 0, epoch=3, first=0) == ["out-of-order", "out-of-order", "duplicate"]
    assert totals_of(page.rows).missing == 1


def test_a_number_0_without_that_word_is_a_number_used_twice() -> None:
    page = Page()
    page.all(0, 1)
    assert page.come(0, epoch=2) is J.DUPLICATE


def test_numbers_continue_at_0_after_the_largest_in_books_too() -> None:
    page = Page()
    assert page.all(MAX_SEQUENCE - 1, MAX_SEQUENCE, 0, 1, MAX_SEQUENCE, 4) == ["new"] * 4 + [
        "duplicate",
        "gap",
    ]
    page = Page()
    assert page.all(MAX_SEQUENCE - 2, 2) == ["new", "gap"]
    assert (page.book().faults.holes, page.book().faults.missing) == ((Hole(MAX_SEQUENCE - 1, 1),), 4)
    assert page.all(0, MAX_SEQUENCE, MAX_SEQUENCE - 1, 1, 1) == ["out-of-order"] * 4 + ["duplicate"]
    assert page.book().faults.holes == ()


def test_more_holes_than_the_book_can_hold_make_what_comes_for_them_doubtful() -> None:
    page = Page()
    page.all(*range(0, 2 * (LIMIT_HOLES + 3), 2))
    assert len(page.book().faults.holes) == LIMIT_HOLES
    assert page.book().faults.forgotten == 3
    assert page.all(1, 3, 5, 0, 6) == ["doubtful", "doubtful", "out-of-order", "doubtful", "duplicate"]
    assert page.book().faults.doubtful == 3


def test_records_without_a_stamp_are_counted_and_nothing_else() -> None:
    page = Page()
    for offset in range(3):
        ledger.fold(page.rows, ledger.decode((), offset), 7)
    assert dict(page.rows.scan()) == {"/totals": Totals(unstamped=3)}


def test_no_name_of_a_producer_is_taken_for_the_sums() -> None:
    page = Page()
    assert page.come(0, producer="/totals") is J.NEW
    assert page.book("/totals").records == 1
    assert totals_of(page.rows) == Totals(producers=1)
    assert [ledger.producer_of_key(key) for key, _ in page.rows.scan()] == [None, "/totals"]


# -- against a model that remembers everything


class Memory:
    """All numbers ever seen, by count; what the books must say, with memory without limit."""

    def __init__(self) -> None:
        self.epoch, self.count, self.last = -1, 0, -1
        self.first_seen = 0
        self.seen: set[tuple[int, int]] = set()

    def judge(self, stamp: Stamp) -> Judgement:
        if self.epoch < 0:
            self.epoch, self.last, self.first_seen = stamp.epoch, stamp.sequence, stamp.sequence
            self.seen.add((0, stamp.sequence))
            return J.NEW
        if stamp.epoch < self.epoch:
            return J.ZOMBIE
        if stamp.epoch > self.epoch:
            self.epoch = stamp.epoch
            if stamp.first is not None:
                self.count += 1
                self.last = self.first_seen = min(stamp.first, stamp.sequence)
                self.last -= 1
        place = (self.count, stamp.sequence)
        if place in self.seen or stamp.sequence < self.first_seen:
            return J.DUPLICATE
        self.seen.add(place)
        told = J.NEW if stamp.sequence == self.last + 1 else J.GAP if stamp.sequence > self.last else J.LATE
        self.last = max(self.last, stamp.sequence)
        return told


stamped = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 25), st.sampled_from([None, None, 0, 4])),
    min_size=1,
    max_size=80,
)


@given(stamped)
@settings(max_examples=scaled(300))
def test_the_books_judge_as_a_memory_without_limit_does(records: list[tuple[int, int, int | None]]) -> None:
    page, memory = Page(), Memory()
    for epoch, sequence, first in records:
        first = None if first is None else min(first, sequence)
        wanted = memory.judge(Stamp("p", epoch, sequence, first))
        assert page.come(sequence, epoch, first) is wanted, (epoch, sequence, first, page.book())
    book, totals = page.book(), totals_of(page.rows)
    assert (totals.gaps, totals.missing, totals.late) == (
        book.faults.gaps,
        book.faults.missing,
        book.faults.late,
    )
    assert (totals.duplicates, totals.zombies, totals.restarts) == (
        book.faults.duplicates,
        book.faults.zombies,
        book.faults.restarts,
    )
    current = [number for count, number in memory.seen if count == memory.count]
    assert book.faults.missing == max(current) - min(current, default=0) + 1 - len(current) + (
        min(current) - book.first_sequence
    )


@pytest.mark.long
def test_the_model_would_notice_a_book_that_forgets_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    true = ledger.judge
    monkeypatch.setattr(
        ledger, "judge", lambda book, stamp: J.LATE if (found := true(book, stamp)) is J.DUPLICATE else found
    )
    with pytest.raises(AssertionError):
        test_the_books_judge_as_a_memory_without_limit_does()


# -- clean topics

SOURCE, CLEAN, VERDICTS = "orders", "orders-clean", "orders.verdicts"
CLEANER = bookkeeper.dedupe(SOURCE, CLEAN)
BOOKS = bookkeeper.books(SOURCE)


def columns(processor: Processor[Any, Any], records: list[tuple[bytes, Headers]], start: int) -> Batch:
    """Return records of partition 3 as the columns of *processor*."""
    numbers = range(start, start + len(records))
    known: dict[str, list[Any]] = {
        "value": [value for value, _ in records],
        "key": [b"k" for _ in records],
        "headers": [headers for _, headers in records],
        "partition": [3] * len(records),
        "offset": list(numbers),
    }
    return Batch(numbers, [5_000] * len(records), tuple(known[name] for name in processor.inputs))


def run(
    processor: Processor[Any, Any], records: list[tuple[bytes, Headers]]
) -> tuple[list[Emit], dict[bytes, bytes | None], list[int]]:
    folder = Folder(processor, NoStore())
    changes = folder.fold([columns(processor, records, 0)])
    assert changes is not None
    return [*changes.emits], dict(changes.puts), [each.offset for each in changes.refused]


def rec(
    value: bytes, epoch: int, sequence: int, first: int | None = None, producer: str = "p"
) -> tuple[bytes, Headers]:
    return value, (("trace", b"1"), *stamp_headers(Stamp(producer, epoch, sequence, first)))


MIXED = [
    rec(b"a", 1, 0),
    rec(b"b", 1, 1),
    rec(b"b", 1, 1),
    rec(b"d", 1, 3),
    rec(b"other", 9, 7, producer="q"),
    rec(b"e", 2, 4),
    rec(b"zombie", 1, 4),
    rec(b"c", 2, 2),
    (b"plain", (("trace", b"1"),)),
    (b"broken", ((stamps.PRODUCER, b"p"),)),
    rec(b"f", 2, 5),
]


def test_a_clean_topic_gets_each_number_once_as_it_was_and_verdicts_have_the_rest() -> None:
    emits, _, refused = run(CLEANER, MIXED)
    clean = [emit for emit in emits if emit.topic == CLEAN]
    assert [emit.value for emit in clean] == [b"a", b"b", b"d", b"other", b"e", b"c", b"plain", b"f"]
    assert {(emit.key, emit.partition) for emit in clean} == {(b"k", 3)}
    assert [emit.headers for emit in clean] == [
        headers for value, headers in MIXED if value in {emit.value for emit in clean}
    ][:2] + [MIXED[at][1] for at in (3, 4, 5, 7, 8, 10)]
    told = [decode_verdict(emit.value or b"") for emit in emits if emit.topic == VERDICTS]
    assert [(each.offset, each.verdict, each.kept) for each in told] == [
        (2, J.DUPLICATE, False),
        (3, J.GAP, True),
        (6, J.ZOMBIE, False),
        (7, J.LATE, True),
    ]
    assert [each.reason for each in told] == [
        "number 1 has come before, the next is 2",
        "numbers 2 to 2 have not come",
        "epoch 1 was replaced by 2",
        "number 2 came after 4",
    ]
    assert (told[0].topic, told[0].partition, told[0].producer, told[0].at_ms, told[0].expected) == (
        SOURCE,
        3,
        "p",
        5_000,
        2,
    )
    assert refused == [9], "a stamp that is not whole goes to the quarantine, not to the clean topic"


def test_cleaning_keeps_the_same_books_as_bookkeeping() -> None:
    assert run(CLEANER, MIXED)[1] == run(BOOKS, MIXED)[1]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.sampled_from(["p", "q"])), max_size=60),
    st.integers(1, 60),
)
@settings(max_examples=scaled(100))
def test_whatever_comes_a_number_is_in_the_clean_topic_at_most_once_however_the_log_is_cut(
    records: list[tuple[int, int, str]], cut: int
) -> None:
    log = [
        rec(b"%d" % at, epoch, sequence, producer=producer)
        for at, (epoch, sequence, producer) in enumerate(records)
    ]
    folder, emits = Folder(CLEANER, NoStore()), list[Emit]()
    for part in (log[:cut], log[cut:]):
        if part:
            changes = folder.fold([columns(CLEANER, part, log.index(part[0]))])
            assert changes is not None
            emits += changes.emits
            folder.commit()
    whole = run(CLEANER, log)[0] if log else []
    assert emits == whole
    kept = [read_stamp(emit.headers) for emit in emits if emit.topic == CLEAN]
    numbers = [(stamp.producer, stamp.sequence) for stamp in kept if stamp is not None]
    assert len(numbers) == len(set(numbers))
    told = [decode_verdict(emit.value or b"") for emit in emits if emit.topic == VERDICTS]
    assert len(kept) + sum(not each.kept for each in told) == len(log), "each record is kept or told"
    assert all(each.kept is (each.verdict in KEPT) for each in told)


def test_a_cleaner_that_keeps_zombies_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "KEPT", KEPT | {J.ZOMBIE, J.DUPLICATE})
    with pytest.raises(AssertionError):
        test_a_clean_topic_gets_each_number_once_as_it_was_and_verdicts_have_the_rest()


def test_a_topic_cannot_be_cleaned_into_itself() -> None:
    for clean, verdicts in (("orders", None), ("orders-clean", "orders"), ("orders.verdicts", None)):
        with pytest.raises(ConfigError, match="three topics"):
            bookkeeper.dedupe("orders", clean, verdicts=verdicts)


# -- the registry


class Names:
    """The registry's rows of one partition; each command has a request id of its own unless it is
    repeated.
    """

    def __init__(self, partition: int = 0) -> None:
        self.rows: Any = empty_rows(Registration)
        self.partition, self._requests = partition, 0

    def request(self) -> str:
        self._requests += 1
        return f"r{self._requests}"

    def do(self, command: registry.RegistryCommand) -> RegistryAnswer:
        return obey(self.rows, ReceivedCommand(command, self.partition), 77)

    def register(self, name: str, request: str = "") -> RegistryAnswer:
        return self.do(Register(name=name, request=request or self.request(), instance="host-1"))

    def bump(self, name: str, producer_id: int, epoch: int, request: str = "") -> RegistryAnswer:
        return self.do(
            Bump(name=name, request=request or self.request(), producer_id=producer_id, epoch=epoch)
        )


def test_each_registration_gives_the_names_id_and_its_next_epoch() -> None:
    names = Names()
    first, second, other = names.register("billing"), names.register("billing"), names.register("mail")
    assert (first.producer_id, first.epoch, second.producer_id, second.epoch) == (
        first.producer_id,
        0,
        first.producer_id,
        1,
    )
    assert (other.producer_id != first.producer_id, other.epoch) == (True, 0)


def test_only_the_holder_may_raise_the_epoch_and_the_former_one_is_fenced() -> None:
    names = Names()
    held = names.register("billing")
    raised = names.bump("billing", held.producer_id, 0)
    assert (raised.error, raised.epoch) == (RegistryError.NONE, 1)
    fenced = names.bump("billing", held.producer_id, 0)
    assert (fenced.error, fenced.epoch) == (RegistryError.FENCED, 1)
    assert names.bump("billing", held.producer_id + 1, 1).error is RegistryError.FENCED
    assert names.bump("nobody", 0, 0).error is RegistryError.UNKNOWN
    row = names.rows.get(name_key("billing"))
    assert (row.epoch, row.fenced, row.instance, row.first_at_ms) == (1, 2, "host-1", 77)


def test_a_command_that_arrives_twice_is_answered_the_same_and_done_once() -> None:
    names = Names()
    assert names.register("billing", "x") == names.register("billing", "x")
    held = names.register("billing", "y")
    assert held.epoch == 1
    assert names.bump("billing", held.producer_id, 1, "z") == names.bump("billing", held.producer_id, 1, "z")
    assert names.rows.get(name_key("billing")).epoch == 2


def test_a_registry_that_was_made_again_gives_epochs_above_those_that_ledgers_know() -> None:
    """A ledger keeps the epochs of the registry that was deleted; below them all records are a zombie's."""

    def taken_over(names: Names, now_ms: int) -> int:
        command = Register(name="billing", request=names.request(), least_epoch=now_ms)
        return names.do(command).epoch

    rows, old, new = empty_rows(ledger.BookRow), Names(), Names()
    epochs = [taken_over(old, 1_000), taken_over(old, 1_000), taken_over(old, 900), taken_over(new, 1_003)]
    assert epochs == sorted(set(epochs))
    for offset, epoch in enumerate(epochs):
        _, judgement = ledger.record(rows, Stamp("billing", epoch, 0, 0), offset, 0)
        assert judgement is Judgement.NEW, epoch
    assert old.register("billing").epoch == epochs[2] + 1, "an earlier release names no least epoch"


def test_ids_of_different_partitions_never_meet() -> None:
    given_out = [Names(partition).register(name).producer_id for partition in (0, 1, 5) for name in ("a",)]
    names = Names(1)
    given_out += [names.register(f"n{at}").producer_id for at in range(1, 9)][1:]
    assert len(set(given_out)) == len(given_out)


def test_the_registry_answers_on_its_topic_in_the_partition_of_the_command() -> None:
    processor = bookkeeper.registry("names")
    value = registry.encode_command(Register(name="billing", request="r"))
    folder = Folder(processor, NoStore())
    changes = folder.fold([Batch([0, 1], [5, 6], ([value, b"{}"], [2, 2]))])
    assert changes is not None
    (emit,) = changes.emits
    assert (emit.topic, emit.key, emit.partition) == ("names.answers", "billing", 2)
    assert registry.decode_answer(emit.value or b"") == RegistryAnswer(
        request="r", name="billing", producer_id=2, epoch=0
    )
    assert [each.offset for each in changes.refused] == [1]
    assert registry.route(name_key("billing"), 8) is not None
    assert registry.route(registry.IDS_KEY, 8) is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"[]",
        b'{"type":"register"}',
        b'{"type":"register","name":"","request":"r"}',
        b'{"type":"register","name":"a","request":"r","least_epoch":-1}',
        b'{"type":"register","name":"a","request":"r","least_epoch":500000000000000001}',
        b'{"type":"register","name":"a\\u0000","request":"r"}',
        b'{"type":"register","name":"a","request":""}',
        b'{"type":"register","name":"a","request":"' + b"r" * 300 + b'"}',
        b'{"type":"bump","name":"a","request":"r"}',
        b'{"type":"other","name":"a","request":"r"}',
    ],
)
def test_a_value_that_is_no_command_is_refused(value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        registry.decode(value, 0)


# -- declared by settings


def test_settings_declare_what_the_bookkeeper_keeps() -> None:
    assert bookkeeper.processors(Settings()) == []
    told = Settings(registry=True, books="orders, shop.payments", dedupe="raw:raw-clean", progress="p")
    found = {each.name: each for each in bookkeeper.processors(told)}
    assert list(found) == ["producers", "books-orders", "books-shop_payments", "clean-raw", "progress-p"]
    assert found["producers"].emits == ("holdfast.producers.answers",)
    assert found["clean-raw"].emits == ("raw-clean", "raw.verdicts")


@pytest.mark.parametrize(
    "changes",
    [
        {"books": "a b"},
        {"dedupe": "orders"},
        {"dedupe": "a:b:c"},
        {"producers_topic": "/"},
        {"progress": ".."},
    ],
)
def test_settings_that_name_no_topics_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(changes))):
        Settings(**changes)  # type: ignore[arg-type]


def test_two_topics_that_would_share_a_table_are_refused() -> None:
    with pytest.raises(ConfigError, match="both kept as books-a_b"):
        bookkeeper.processors(Settings(books="a.b,a_b"))


def test_rows_are_read_as_they_were_written() -> None:
    page = Page()
    page.all(0, 5, 3, 3)
    for _, row in page.rows.scan():
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=ledger.BookRow) == row
    assert judge(page.book(), Stamp("p", 1, advance(5, 1))) is J.NEW
    assert Whole(b"", None, (), 0, 0, ledger.NOBODY).stamp is ledger.NOBODY
