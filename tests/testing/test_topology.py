"""The test kit: what it shows of an application, and which folds it catches."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast import Emit, Global, Processor, Rows, Source, Stream, by_key
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.streams import Internal
from holdfast.errors import ChainError, ImpureFoldError, Later, TopologyError
from holdfast.streams import Rekey, count
from holdfast.testing import Topology
from tests.support.visits import Visit, Visitor, visits

QUIET_MS = 1_000


class Sale(msgspec.Struct, frozen=True):
    customer: str
    cents: int


class Spent(msgspec.Struct, frozen=True):
    cents: int = 0
    reminders: int = 0


def spend(rows: Rows[Spent], sale: Sale, at_ms: int) -> Iterator[Emit]:
    before = rows.get(sale.customer) or Spent()
    rows[sale.customer] = msgspec.structs.replace(before, cents=before.cents + sale.cents)
    rows.wake_at(sale.customer, at_ms + QUIET_MS)
    if before.cents < 100 <= before.cents + sale.cents:
        yield Emit("big", key=sale.customer, value=b"big")


def remind(rows: Rows[Spent], customer: str, at_ms: int) -> None:
    before = rows[customer]
    rows[customer] = msgspec.structs.replace(before, reminders=before.reminders + 1)


def tally(rows: Rows[int], name: str, at_ms: int) -> None:
    rows[name] = (rows.get(name) or 0) + 1


SPENT = Processor(
    name="spent",
    source="sales",
    decode=msgspec.json.Decoder(Sale).decode,
    fold=spend,
    on_wake=remind,
    row=Spent,
    route=by_key,
    emits=("big",),
)
BIG = Processor(name="tally", source="big", inputs=("key",), decode=bytes.decode, fold=tally, row=int)


def test_rows_timers_and_emits_of_a_chain() -> None:
    with Topology([SPENT, BIG]) as topology:
        topology.pipe("sales", Sale("ada", 99), key="ada", at=1_000)
        assert topology.read("big") == []
        record = topology.pipe("sales", Sale("ada", 1), key="ada")
        topology.pipe("sales", Sale("bob", 500), key="bob", at=1_500)
        assert [(each.key, each.value, each.at_ms) for each in topology.read("big")] == [
            (b"ada", b"big", 1_000),
            (b"bob", b"big", 1_500),
        ]
        assert topology.read("big") == [], "each record is read once"
        assert (record.partition, record.offset) == (by_key("ada", 3), 1)
        assert topology.table("spent") == {"ada": Spent(100), "bob": Spent(500)}
        assert topology.table(BIG) == {"ada": 1, "bob": 1}
        assert topology.timers("spent") == {"ada": 2_000, "bob": 2_500}
        topology.pipe("sales", Sale("ada", 1), key="ada", at=2_000)
        assert topology.table("spent")["ada"] == Spent(101, reminders=1)
        assert not topology.refused


def test_a_record_that_cannot_be_decoded_is_reported() -> None:
    with Topology([SPENT]) as topology:
        topology.pipe("sales", b"{", key="ada", partition=2)
        (refused,) = topology.refused
        assert (refused.processor, str(refused.record), refused.stage) == ("spent", "sales/2/0", "decode")
        assert refused.error == "DecodeError"
        assert topology.table("spent") == {}


def test_an_app_is_taken_as_a_list_of_processors_is() -> None:
    with Topology(SimpleNamespace(processors={SPENT.name: SPENT})) as topology:
        topology.pipe("sales", Sale("ada", 1), key="ada")
        assert topology.table("spent") == {"ada": Spent(1)}


# -- folds that replay to something else


def test_a_fold_that_looks_at_a_clock_is_caught() -> None:
    def late(rows: Rows[int], word: str, at_ms: int) -> None:
        rows[word] = time.time_ns()

    with pytest.raises(ImpureFoldError, match="words/0/0, folded after a restart, gives other rows"):
        _words(late).pipe("words", "to")


def test_a_fold_that_draws_lots_is_caught() -> None:
    def emit(rows: Rows[int], word: str, at_ms: int) -> Emit:
        return [Emit("out", value=random.randbytes(8))]  # type: ignore[return-value]

    with pytest.raises(ImpureFoldError, match="emits other records: number 0 was"):
        _words(emit).pipe("words", "to")


def test_a_fold_with_state_of_its_own_is_caught() -> None:
    numbers = itertools.count()

    def number(rows: Rows[int], word: str, at_ms: int) -> None:
        rows[word] = next(numbers)

    said = r"gives other rows or timers: words\['to'\] was 0, is 1; a fold .* no global"
    with pytest.raises(ImpureFoldError, match=said):
        _words(number).pipe("words", "to")


def test_a_fold_whose_failures_vary_is_caught() -> None:
    calls = itertools.count()

    def fail(rows: Rows[int], word: str, at_ms: int) -> None:
        if next(calls) % 3:
            raise ValueError("not now")

    with pytest.raises(ImpureFoldError, match="refuses other records"):
        _words(fail).pipe("words", "to")


def test_what_only_a_replay_shows_is_caught_at_the_end() -> None:
    calls = itertools.count()

    def wear_out(rows: Rows[int], word: str, at_ms: int) -> None:
        rows[word] = 1 if next(calls) < 4 else 2  # right for both folds of two records, wrong for the replay

    topology = _words(wear_out)
    topology.pipe("words", "to")
    topology.pipe("words", "be")
    with pytest.raises(
        ImpureFoldError, match=r"replay of 2 records gives other rows or timers: words\['be'\] was 1, is 2;"
    ):
        topology.check()


def test_a_failing_test_is_not_replaced_by_the_check() -> None:
    with pytest.raises(KeyError), _words(lambda rows, word, at_ms: None):
        raise KeyError("the test's own")


def _words(fold: Any) -> Topology:
    return Topology(
        [Processor(name="words", source="words", decode=bytes.decode, fold=fold, row=int, emits=("out",))]
    )


# -- what it is asked in vain


def test_it_says_what_it_does_not_have() -> None:
    topology = Topology([SPENT, BIG], partitions=2)
    with pytest.raises(
        TopologyError, match="no processor reads 'sale'; sources are big, sales; did you mean sales"
    ):
        topology.pipe("sale", b"")
    with pytest.raises(TopologyError, match="no processor emits to 'sales'; emits are big"):
        topology.read("sales")
    with pytest.raises(
        TopologyError, match="no processor 'spend'; there are spent, tally; did you mean spent"
    ):
        topology.table("spend")
    with pytest.raises(TopologyError, match="sales partition 2: this topology has 2 partitions"):
        topology.pipe("sales", b"", partition=2)
    with pytest.raises(TopologyError, match="whole number of ms"):
        topology.pipe("sales", b"", at=1.5)  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="cannot be written as JSON"):
        topology.pipe("sales", object())
    with pytest.raises(TopologyError, match="at least one"):
        Topology([SPENT], partitions=0)
    with pytest.raises(TopologyError, match="no processors"):
        Topology([])


def test_rows_that_queries_would_not_find_are_reported() -> None:
    topology = Topology([SPENT])
    elsewhere = (by_key("ada", 3) + 1) % 3
    topology.pipe("sales", Sale("ada", 1), partition=elsewhere)
    with pytest.raises(TopologyError, match=f"partition {elsewhere}, but its route leads queries to"):
        topology.table("spent")


def test_one_key_in_two_partitions_is_reported() -> None:
    with Topology([BIG]) as topology:
        for partition in (0, 1):
            topology.pipe("big", b"", key="ada", partition=partition)
        with pytest.raises(TopologyError, match="rows of 'ada' in partitions 0 and 1"):
            topology.table("tally")
        assert topology.table("tally", partition=1) == {"ada": 1}


@pytest.mark.long
def test_processors_that_feed_themselves_end() -> None:
    words = Internal("words-again", Text())

    def again(rows: Rows[int], word: str, at_ms: int) -> list[Emit]:
        return [words.emit("k", "x")]

    circle: Processor[Any, int] = Processor(
        name="circle",
        on={Source("words", Text()): again, Source(words, Text()): again},
        row=int,
        emits=(words,),
    )
    with pytest.raises(TopologyError, match="set off more than 10000 records"):
        Topology([circle]).pipe("words", "x")


def test_emits_in_place_stay_in_their_partition() -> None:
    def same(rows: Rows[int], word: str, at_ms: int) -> list[Emit]:
        return [Emit("out", key="k", value=b"")]

    with Topology(
        [
            Processor(
                name="same",
                source="words",
                decode=bytes.decode,
                fold=same,
                row=int,
                emits=("out",),
                in_place=True,
            )
        ]
    ) as topology:
        topology.pipe("words", "x", partition=2)
        assert [each.partition for each in topology.read("out")] == [2]


def test_it_refuses_a_broken_chain_as_a_worker_does() -> None:
    old, new = Internal("words", Text()), Internal("words", Text(), version=2)
    split: Any = Rekey(name="split", source=Source("lines", Text()), by=str, to=new, version=2)
    counted = count(name="counts", source=old, decode=bytes.decode, key=str)
    with pytest.raises(ChainError, match="have counts read that"):
        Topology([split, counted])


def test_it_describes_itself() -> None:
    assert Topology([BIG, SPENT]).describe() == (
        "spent (version 1)\n  folds   sales\n  table   spent.v1, with timers\n  emits   big (internal)\n\n"
        "tally (version 1)\n  folds   big (internal)\n  table   tally.v1"
    )


def test_rows_of_named_tables_are_asked_for_by_name() -> None:
    with Topology([visits()]) as topology:
        for at, told in enumerate(("enter ann home", "enter bob news", "leave ann -", "break cy home")):
            topology.pipe("visits", told, key=told.split(" ")[1], at=1_000 + at)
        assert topology.table("visitors") == {"ann": Visitor(1), "bob": Visitor(1)}
        assert topology.table("visitors.open") == {"bob": Visit("news", 1_001)}
        assert topology.table("visitors.pages") == {"home": 1.0, "news": 1.0}
        assert [each.reason for each in topology.refused] == ["the fold failed"]
        with pytest.raises(TopologyError, match=r"visitors has no table 'shut'; it has open, pages$"):
            topology.table("visitors.shut")
        assert "  named   open, pages" in topology.describe()


def test_a_named_table_s_route_is_checked_too() -> None:
    with Topology([visits()]) as topology:
        topology.pipe("visits", "enter ann home", key="somebody else", partition=1)
        topology.pipe("visits", "enter ann home", key="somebody else", partition=2)
        with pytest.raises(TopologyError, match=r"visitors\.open has the row of 'ann' in partition"):
            topology.table("visitors.open")


class Registry:
    """A need of serdes: it answers while it is `there`."""

    def __init__(self) -> None:
        self.there = True

    def decode(self, value: bytes | None) -> str:
        if not self.there:
            raise Later("nobody answers", needs="the registry")
        return (value or b"").decode()

    def encode(self, value: str) -> bytes:
        if not self.there:
            raise Later("nobody answers", needs="the registry")
        return value.encode()


def pair_of(registry: Registry) -> tuple[Source[str], Processor[Any, str]]:
    """Return a source that needs the registry, and a processor of it and of another that does not."""
    words = Source("words", registry)

    def note(rows: Rows[str], event: str, at_ms: int) -> Iterator[Emit]:
        rows["all"] = (rows.get("all") or "") + event
        rows.wake_at("all", at_ms + 5, clock="tick")
        yield Emit("noted", "all", event.encode())

    def on_tick(rows: Rows[str], key: str, at_ms: int) -> None:
        rows["ticks"] = (rows.get("ticks") or "") + "!"

    return words, Processor(
        name="notes",
        on={words: note, Source("others", Text()): note},
        row=str,
        on_tick=on_tick,
        emits=("noted",),
    )


def test_a_record_that_has_to_wait_holds_its_partition_alone_until_it_resumes() -> None:
    registry = Registry()
    words, notes = pair_of(registry)
    with Topology([notes]) as topology:
        topology.pipe(words, "a", partition=0, at=10)
        registry.there = False
        topology.pipe("words", b"b", partition=0)
        topology.pipe("others", b"c", partition=0)
        topology.pipe("others", b"x", partition=1)
        topology.tick(20)
        (waiting,) = topology.waiting
        assert (waiting.processor, waiting.needs, waiting.reason) == (
            "notes",
            "the registry",
            "nobody answers",
        )
        assert waiting.record is not None
        assert (waiting.record.topic, waiting.record.partition, waiting.record.offset) == ("words", 0, 1)
        assert topology.table("notes", partition=0) == {"all": "a"}
        assert topology.table("notes", partition=1) == {"all": "x", "ticks": "!"}, "others go on"
        topology.go_on()
        assert topology.waiting, "it is not there yet"
        registry.there = True
        topology.go_on()
        assert not topology.waiting
        assert not topology.refused
        assert topology.table("notes", partition=0) == {"all": "abc", "ticks": "!"}
        assert [each.value for each in topology.read("noted")] == [b"a", b"x", b"b", b"c"]


def test_records_after_an_emit_that_waits_follow_it_when_it_resumes() -> None:
    registry = Registry()
    words = Source("words", Text())
    sent = Stream("sent", registry)

    def send(rows: Rows[int], event: str, at_ms: int) -> Iterator[Emit]:
        rows["sent"] = (rows.get("sent") or 0) + 1
        yield sent.emit("k", event)

    sending: Processor[Any, int] = Processor(name="sending", on={words: send}, row=int, emits=(sent,))
    tallied = Processor(name="tallied", source="sent", decode=bytes.decode, fold=tally, row=int)
    with Topology([sending, tallied]) as topology:
        registry.there = False
        for word in ("a", "b", "a"):
            topology.pipe(words, word)
        assert [each.processor for each in topology.waiting] == ["sending"]
        assert topology.table("sending") == {}
        registry.there = True
        topology.go_on()
        assert (topology.table("sending"), topology.table("tallied")) == ({"sent": 3}, {"a": 2, "b": 1})


def test_a_global_waits_for_itself() -> None:
    registry = Registry()

    def keep(rows: Rows[str], event: str, at_ms: int) -> None:
        rows["rate"] = event

    rates = Global("rates", Source("rates", registry), fold=keep, row=str)

    def look(rows: Rows[str], event: str, at_ms: int) -> None:
        rows[event] = rows.globals[rates].get("rate") or "none"

    looking: Processor[Any, str] = Processor(
        name="looking", on={Source("words", Text()): look}, row=str, reads=(rates,)
    )
    with Topology([looking]) as topology:
        registry.there = False
        topology.pipe("rates", b"1.5")
        topology.pipe("rates", b"1.6")
        topology.pipe("words", b"before")
        assert [(each.processor, each.needs) for each in topology.waiting] == [("rates", "the registry")]
        registry.there = True
        topology.go_on()
        topology.pipe("words", b"after")
        assert topology.table("looking") == {"after": "1.6", "before": "none"}
        assert not topology.waiting


def test_a_processor_that_stops_is_reported_and_resumes_after_a_skip() -> None:
    def fold(rows: Rows[int], event: str, at_ms: int) -> None:
        if event == "bad":
            raise ValueError("no such word")
        rows[event] = (rows.get(event) or 0) + 1

    careful = Processor(
        name="careful", source="words", decode=bytes.decode, fold=fold, row=int, on_error="stop"
    )
    with Topology([careful]) as topology:
        for word in (b"a", b"bad", b"b", b"bad"):
            topology.pipe("words", word)
        (stopped,) = topology.stopped
        assert (stopped.processor, stopped.stage, stopped.reason) == ("careful", "fold", "no such word")
        assert stopped.record is not None
        assert stopped.record.offset == 1
        assert (topology.table("careful"), topology.refused) == ({"a": 1}, [])
        topology.go_on()
        assert topology.table("careful") == {"a": 1}
        topology.skip("careful")
        assert topology.table("careful") == {"a": 1, "b": 1}
        assert [each.record.offset for each in topology.refused if each.record] == [1]
        assert [each.record.offset for each in topology.stopped if each.record] == [3]
        with pytest.raises(TopologyError, match="careful partition 1 is not stopped"):
            topology.skip("careful", partition=1) if topology.pipe("words", b"c", partition=1) else None


def test_what_answers_only_now_and_then_is_folded_by_all_or_none() -> None:
    asked = [0]

    def fold(rows: Rows[int], event: str, at_ms: int) -> None:
        rows[event] = (rows.get(event) or 0) + 1
        asked[0] += 1
        if asked[0] in (2, 3):  # at full speed, and with care
            raise Later("it answered once", needs="the registry")

    flaky = Processor(name="flaky", source="words", decode=bytes.decode, fold=fold, row=int)
    with Topology([flaky]) as topology:
        topology.pipe("words", b"a")
        assert (len(topology.waiting), topology.table("flaky")) in [(0, {"a": 1}), (1, {})]
        topology.go_on()
        assert topology.table("flaky") == {"a": 1}


def _fail(topology: Topology, table: str, key: str) -> None:
    """Do as a test that misses a row."""
    with topology:
        for _ in range(7):
            topology.pipe("names", "ada", key="ada")
        assert topology.table(table)[key] == 7


def test_a_failed_test_shows_the_refused_records() -> None:
    def need(rows: Rows[int], name: str, at_ms: int) -> None:
        rows[name] = rows[name] + 1  # KeyError: no row was there before

    needing = Processor(name="needing", source="names", decode=bytes.decode, fold=need, row=int)
    topology = Topology([needing])
    with pytest.raises(KeyError) as caught:
        _fail(topology, "needing", "ada")
    (note,) = caught.value.__notes__
    first, *lines = note.split("\n")
    assert first == "holdfast refused in this topology:"
    assert lines[0] == f"  {topology.refused[0].record} by needing, at fold: KeyError: 'ada'"
    assert (len(lines), lines[-1]) == (6, "  and 2 more")


def test_a_failed_test_without_refusals_gets_no_note() -> None:
    tallied = Processor(name="tallied", source="names", decode=bytes.decode, fold=tally, row=int)
    with pytest.raises(KeyError) as caught:
        _fail(Topology([tallied]), "tallied", "ben")
    assert not hasattr(caught.value, "__notes__")
