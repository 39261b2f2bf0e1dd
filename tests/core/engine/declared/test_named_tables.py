"""Named tables of a processor: declared, kept apart, changed and undone together, and the same however a log
is cut.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.graph import TopologyGraph
from holdfast.core.engine.declared.named_tables import LIMIT_TABLES, Table
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stepping import Transition
from holdfast.core.engine.state.codec import RowCodec, digest, key_in_table, row_key, wake_key
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError
from tests.support.visits import Visit, Visitor, visits


def batch(*values: str, first: int = 0, step_ms: int = 10) -> Batch:
    offsets = range(first, first + len(values))
    times_ms = [1_000 + step_ms * offset for offset in offsets]
    return Batch(offsets, times_ms, ([value.encode() for value in values],))


def folded(processor: Processor[Any, Any], *values: str, **more: Any) -> Folder[Any]:
    store = DictStore()
    folder: Folder[Any] = Folder(processor, store, **more)
    changes = folder.fold([batch(*values)])
    assert changes is not None
    store.apply(changes.puts)
    folder.commit()
    return folder


def test_each_table_has_its_rows_under_keys_of_its_own() -> None:
    store = DictStore()
    folder = Folder(visits(), store)
    changes = folder.fold([batch("enter ann home")])
    assert changes is not None
    assert changes.puts == [
        (row_key("ann"), RowCodec[Any](Visitor).encode(Visitor(1))),
        (b"\x04open\x00ann", RowCodec[Any](Visit).encode(Visit("home", 1_000))),
        (b"\x04pages\x00home", RowCodec[Any](float).encode(1.0)),
        (wake_key("ann"), (1_050).to_bytes(8, "big")),
    ]
    assert [(each.topic, each.value) for each in changes.emits] == [("visited", b"1")]


def test_a_processor_without_named_tables_writes_what_it_did_when_it_declares_one() -> None:
    def count(rows: Rows[int], word: str, at_ms: int) -> None:
        rows[word] = rows.get(word, 0) + 1
        rows.wake_at(word, at_ms + 1_000)

    declared: list[dict[str, Any]] = [{}, {"tables": {"other": int}}]
    told = [
        Processor(name="words", source="lines", decode=bytes.decode, fold=count, row=int, **more)
        for more in declared
    ]
    one, other = (Folder(each, DictStore()).fold([batch("a", "b", "a")]) for each in told)
    assert one is not None
    assert one == other
    assert [key for key, _ in one.puts] == [row_key("a"), row_key("b"), wake_key("a"), wake_key("b")]


def test_a_refused_record_changes_nothing_in_any_table() -> None:
    folder = folded(visits(), "enter ann home", "break bob news", "break ann news", "leave cy -")
    store = folder.rows._store
    assert isinstance(store, DictStore)
    alone = folded(visits(), "enter ann home").rows._store
    assert isinstance(alone, DictStore)
    assert [*store.everything()] == [*alone.everything()]


def test_transitions_name_the_table() -> None:
    told: list[Transition[Any]] = []
    folded(visits(), "enter ann home", "leave ann -", trace=told.append)
    assert [(each.table, each.key, each.before, each.after) for each in told] == [
        ("", "ann", None, Visitor(1)),
        ("open", "ann", None, Visit("home", 1_000)),
        ("pages", "home", None, 1.0),
        ("open", "ann", Visit("home", 1_000), None),
    ]


class Tags(msgspec.Struct, frozen=True):
    names: tuple[str, ...]


def test_a_fold_meets_rows_of_a_named_table_in_the_form_that_a_restart_finds() -> None:
    def fold(rows: Rows[int], word: str, at_ms: int) -> None:
        tags = rows.table("tags")
        tags[word] = Tags(names=[word])  # type: ignore[arg-type]  # a list where a tuple is declared
        assert tags[word].names == (word,)

    processor = Processor(
        name="words", source="lines", decode=bytes.decode, fold=fold, row=int, tables={"tags": Tags}
    )
    changes = Folder(processor, DictStore()).fold([batch("a", "b")])
    assert changes is not None
    assert changes.refused == []
    assert [key for key, _ in changes.puts] == [b"\x04tags\x00a", b"\x04tags\x00b"]


@pytest.mark.parametrize(
    ("tables", "why"),
    [
        ({"a.b": int}, "table name 'a.b': use 1 to 100"),
        ({"": int}, "table name ''"),
        ({"a\x00": int}, "table name"),
        ({3: int}, "table name 3"),
        (["open"], "tables is .*write a dict"),
        ({"open": dict[str, int]}, "row type .* of table open: rows must be immutable"),
        ({"open": Table(int, lambda key: 0)}, "route of table open takes"),  # type: ignore[arg-type, misc]
        ({f"t{at}": int for at in range(LIMIT_TABLES + 1)}, "16 are the most"),
    ],
)
def test_a_wrong_declaration_says_what_to_write(tables: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Processor(
            name="words",
            source="lines",
            decode=bytes.decode,
            fold=lambda rows, word, at_ms: None,
            row=int,
            tables=tables,
        )


def test_a_fold_that_asks_for_an_undeclared_table_has_its_record_refused() -> None:
    def fold(rows: Rows[int], word: str, at_ms: int) -> None:
        rows[word] = 1
        if word == "timer":
            rows.table("open").wake_at("a", at_ms)
        rows.table("closed")["a"] = 1

    processor = Processor(
        name="words", source="lines", decode=bytes.decode, fold=fold, row=int, tables={"open": int}
    )
    changes = Folder(processor, DictStore()).fold([batch("a", "timer")])
    assert changes is not None
    assert changes.puts == []
    assert [each.reason for each in changes.refused] == [
        "no table 'closed'; the tables declared are open: write Processor(..., tables={name: Row})",
        "wake_at('a') on the rows of table open: timers are the processor's, call rows.wake_at",
    ]
    with pytest.raises(ConfigError, match=r"processor words: no table 'shut'; its tables: words\.open"):
        processor.row_of("shut")


def test_the_graph_names_them() -> None:
    graph = TopologyGraph.of([visits()])
    assert graph.records()[0]["tables"] == ["open", "pages"]
    assert "  named   open, pages\n" in graph.text()


_ops = st.builds(
    "{} {} {}".format,
    st.sampled_from(["enter", "enter", "enter", "leave", "break"]),
    st.sampled_from(["ann", "bob", "cy", "ж"]),
    st.sampled_from(["home", "news", "a", "ab"]),
)


@given(st.lists(_ops, max_size=60), st.lists(st.integers(1, 60), max_size=60), st.booleans(), st.booleans())
def test_cuts_restarts_and_tracing_change_no_byte(
    log: list[str], cuts: list[int], restart: bool, trace: bool
) -> None:
    """Fold one log at once, and in transactions with a restart between them; and compare with dicts."""
    whole = DictStore()
    everything = Folder(visits(), whole).fold([batch(*log)])
    whole.apply([] if everything is None else everything.puts)
    store, at = DictStore(), 0
    emits: list[Any] = []
    options: dict[str, Any] = {"trace": lambda each: None} if trace else {}
    folder: Folder[Any] = Folder(visits(), store, cache_rows=3, **options)
    for cut in [*cuts, len(log) or 1]:
        if restart:
            folder = Folder(visits(), store, marker=folder.marker, cache_rows=3, **options)
        changes = folder.fold([batch(*log[at : at + cut], first=at)])
        if changes is not None:
            store.apply(changes.puts)
            emits += changes.emits
            folder.commit()
        at += cut
    assert digest(store.everything()) == digest(whole.everything())
    assert emits == ([] if everything is None else everything.emits)
    assert dict(store.everything()) == naive(log)


def naive(log: list[str]) -> dict[bytes, bytes]:
    """Return the state that the records of *log* give, by dicts."""
    own: dict[str, int] = {}
    opened: dict[str, Visit] = {}
    pages: dict[str, float] = {}
    wakes: dict[str, int] = {}
    for offset, record in enumerate(log):
        at_ms = 1_000 + 10 * offset
        for visitor, due_ms in [*wakes.items()]:
            if due_ms <= at_ms:
                del wakes[visitor]
                opened.pop(visitor, None)
        op, visitor, page = record.split(" ")
        if op == "leave":
            opened.pop(visitor, None)
        if op != "enter":
            continue
        before = opened.get(visitor)
        own[visitor] = own.get(visitor, 0) + (before is None)
        opened[visitor] = Visit(page, at_ms if before is None else before.since_ms)
        pages[page] = pages.get(page, 0.0) + 1.0
        wakes[visitor] = at_ms + 50
    rows = {
        key_in_table(table, key): msgspec.msgpack.encode(row)
        for table, found in (
            ("", {k: Visitor(v) for k, v in own.items()}),
            ("open", opened),
            ("pages", pages),
        )
        for key, row in found.items()
    }
    return {key: b"\x01" + row for key, row in rows.items()} | {
        wake_key(key): at_ms.to_bytes(8, "big") for key, at_ms in wakes.items()
    }
