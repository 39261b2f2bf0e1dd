"""Scans find what a sort of all changes would, and cost what they find: not what the transaction has
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.fold.table_parts import NamedStore
from holdfast.core.engine.merge.global_copies import PartStore, key_in_copy
from holdfast.core.engine.state.codec import ROW, RowCodec, row_key, table_prefix
from holdfast.core.engine.state.key_order import KeyOrder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import JournaledRows, Rows
from holdfast.errors import FoldError
from tests.support.scale import scaled

CODEC: RowCodec[int] = RowCodec(int)
_keys = st.text("aé\U0001f600\uffff/b", max_size=4)


class Store(dict[bytes, bytes]):
    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        yield from [(key, self[key]) for key in sorted(self) if key.startswith(prefix) and key >= start]


class Beside(Store):
    """Rows that a store holds next to other tables' rows, under keys of their own."""

    def __init__(self, rows: dict[bytes, bytes], within: Callable[[DictStore], Any], prefix: bytes) -> None:
        self._whole, self._prefix = DictStore(), prefix
        self._whole.apply(
            [(b"\x01a", b"a timer"), (b"\x03/", b"one"), (b"\x05a", b"behind"), (b"\x02zz", b"")]
        )
        self._part = within(self._whole)
        super().__init__(rows)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        self._whole.apply([(key, None) for key, _ in [*self._whole.scan(self._prefix)]])
        self._whole.apply([(self._prefix + key[len(ROW) :], value) for key, value in self.items()])
        return self._part.scan(prefix, start)  # type: ignore[no-any-return]


STORES: list[Callable[[dict[bytes, bytes]], Store]] = [
    Store,
    lambda rows: Beside(rows, lambda whole: NamedStore(whole, "t"), table_prefix("t")),
    lambda rows: Beside(rows, lambda whole: PartStore(whole, 1), key_in_copy(1, ROW)),
]


def by_sorting(rows: Rows[int], store: Store, prefix: str, start: str = "") -> list[tuple[str, int]]:
    """Return the result of a scan, as it was once made: by a sort of all changed keys."""
    found = {key: CODEC.decode(value) for key, value in store.scan(row_key(prefix))}
    found |= {row_key(key): row for key, row in rows.changed()[0].items() if key.startswith(prefix)}  # type: ignore[misc]
    return [
        (key[1:].decode(), row)
        for key, row in sorted(found.items())
        if row is not None and key >= row_key(start)
    ]


_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "set", "remove", "scan", "scan", "scan from"]), _keys),
        st.tuples(
            st.sampled_from(["keep", "undo", "undo", "commit", "roll back", "unencodable"]), st.just("")
        ),
    ),
    max_size=60,
)


@settings(max_examples=scaled(150))
@given(
    steps=_steps,
    held=st.dictionaries(_keys, st.integers(0, 9), max_size=5),
    few=st.sampled_from([1, 3, 512]),
    journaled=st.booleans(),
    make=st.sampled_from(STORES),
)
def test_a_scan_gives_what_sorting_all_changes_gives(
    steps: list[tuple[str, str]],
    held: dict[str, int],
    few: int,
    journaled: bool,
    make: Callable[[dict[bytes, bytes]], Store],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.core.engine.state.key_order._FEW", few)
        store = make({row_key(key): CODEC.encode(value) for key, value in held.items()})
        base: Rows[int] = Rows(store, CODEC, 100)
        rows: Any = JournaledRows(base) if journaled else base
        for at, (what, key) in enumerate(steps):
            match what:
                case "set" | "remove":
                    rows[key] = at if what == "set" else None
                case "scan":
                    assert list(rows.scan(key)) == by_sorting(rows, store, key)
                case "scan from":
                    for prefix in ("", key[:1]):
                        assert list(rows.scan(prefix, start=key)) == by_sorting(rows, store, prefix, key)
                case "unencodable" if journaled:
                    with pytest.raises(FoldError):
                        rows["\ud800"] = at
                    rows.undo()
                case "undo" | "keep" if journaled:
                    rows.undo() if what == "undo" else rows.keep()
                case "commit" | "roll back":
                    if what == "commit":
                        for name, row in base.changed()[0].items():
                            store.pop(row_key(name), None) if row is None else store.update(
                                {row_key(name): CODEC.encode(row)}
                            )
                        base.commit()
                    else:
                        base.rollback()
                    rows = JournaledRows(base) if journaled else base
        assert list(rows.scan()) == by_sorting(rows, store, "")


def test_a_fold_that_catches_the_error_of_a_scan_at_a_key_that_is_not_text_is_refused_all_the_same() -> None:
    def fold(rows: Rows[int], event: str, _: int) -> None:
        rows["a"] = 1
        list(rows.scan("a"))
        if event == "bad":
            rows["\ud800"] = 2
            try:
                list(rows.scan("a"))
            except Exception:  # noqa: BLE001  whatever it is
                rows["b"] = 3
        assert "b" not in rows

    scanning: Processor[str, int] = Processor(name="t", source="s", decode=str, fold=fold, row=int)
    folder: Folder[Any] = Folder(scanning, Store())
    changes = folder.fold([Batch(range(4), [0] * 4, (["x", "bad", "x", "bad"],))])
    assert changes is not None
    assert [each.offset for each in changes.refused] == [1, 3]
    assert dict(changes.puts) == {row_key("a"): CODEC.encode(1)}


def test_a_scan_looks_at_what_it_finds_and_sorts_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[int] = []
    plain = KeyOrder.add

    def add(order: KeyOrder, keys: Any) -> None:
        added.append(len(keys))
        plain(order, keys)

    monkeypatch.setattr(KeyOrder, "add", add)
    rows: Rows[int] = Rows(Store(), CODEC, 100)
    for number in range(5_000):
        rows[f"{number:05d}"] = number
    for number in range(5_000, 5_100):
        rows[f"{number:05d}"] = number
        rows["00000"] = number
        assert len(list(rows.scan(f"{number:05d}"[:4]))) == number % 10 + 1
    assert added == [5_001, *[1] * 99], "each key enters the order once"
    rows.commit()
    assert list(rows.scan("00000")) == []


def test_rows_that_are_not_scanned_have_no_order() -> None:
    rows: Rows[int] = Rows(Store(), CODEC, 100)
    rows["a"] = 1
    rows.get("a")
    assert not rows._order
