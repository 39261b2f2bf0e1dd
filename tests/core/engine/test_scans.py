"""Scans find what a sort of all changes would, and cost what they find: not what the transaction has
changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.engine.codec import RowCodec, row_key
from holdfast.core.engine.folding import Batch, Folder
from holdfast.core.engine.key_order import KeyOrder
from holdfast.core.engine.processor import Processor
from holdfast.core.engine.rows import JournaledRows, Rows
from holdfast.errors import FoldError
from tests.support.scale import scaled

CODEC: RowCodec[int] = RowCodec(int)
_keys = st.text("aé\U0001f600\uffff/b", max_size=4)


class Store(dict[bytes, bytes]):
    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield from [(key, self[key]) for key in sorted(self) if key.startswith(prefix)]


def by_sorting(rows: Rows[int], store: Store, prefix: str) -> list[tuple[str, int]]:
    """Return what a scan gives, as it was once made: by a sort of all changed keys."""
    found = {key: CODEC.decode(value) for key, value in store.scan(row_key(prefix))}
    found |= {row_key(key): row for key, row in rows.changed()[0].items() if key.startswith(prefix)}  # type: ignore[misc]
    return [(key[1:].decode(), row) for key, row in sorted(found.items()) if row is not None]


_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "set", "remove", "scan", "scan"]), _keys),
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
)
def test_a_scan_gives_what_sorting_all_changes_gives(
    steps: list[tuple[str, str]], held: dict[str, int], few: int, journaled: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.core.engine.key_order._FEW", few)
        store = Store({row_key(key): CODEC.encode(value) for key, value in held.items()})
        base: Rows[int] = Rows(store, CODEC, 100)
        rows: Any = JournaledRows(base) if journaled else base
        for at, (what, key) in enumerate(steps):
            match what:
                case "set" | "remove":
                    rows[key] = at if what == "set" else None
                case "scan":
                    assert list(rows.scan(key)) == by_sorting(rows, store, key)
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


def test_a_fold_that_catches_what_a_scan_beside_a_key_that_is_not_text_raises_is_refused_all_the_same() -> (
    None
):
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


def test_rows_that_nobody_scans_have_no_order() -> None:
    rows: Rows[int] = Rows(Store(), CODEC, 100)
    rows["a"] = 1
    rows.get("a")
    assert not rows._order
