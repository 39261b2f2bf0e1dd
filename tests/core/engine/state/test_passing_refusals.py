"""Records refused for what may be otherwise later are refused again where they are noted, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.merge.merging import replayed
from holdfast.core.engine.state.codec import digest
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.passing_refusals import refusal_note, refusals_in
from holdfast.errors import ChangelogError, UnknownSchemaError

VALUES = [b"a", b"new", b"b", b"new", b"a"]
LOG = Batch([0, 2, 3, 5, 6], [10, 11, 12, 13, 14], (VALUES,))


class Learning(Text):
    """A registry that does not know `new` yet, or does."""

    def __init__(self, *, knows: bool) -> None:
        super().__init__()
        self.knows = knows

    def decode(self, value: bytes | None) -> Any:
        if value == b"new" and not self.knows:
            raise UnknownSchemaError("no schema of id 7")
        return super().decode(value)


def count(rows: Any, event: str, at_ms: int) -> None:
    rows[event] = rows.get(event, 0) + 1
    rows.wake_at(event, at_ms + 2)


def woken(rows: Any, key: str, at_ms: int) -> None:
    rows[key] = rows[key] + 100


def folder_of(kind: str, store: DictStore, *, knows: bool) -> Any:
    serde = Learning(knows=knows)
    declared: dict[str, Any] = {"name": "counts", "row": int, "on_wake": woken}
    if kind == "one":
        return Folder(Processor(source="words", decode=serde.decode, fold=count, **declared), store)
    return Folder(Processor(on={Source("words", serde): count}, **declared), store)


def folded(kind: str, *, knows: bool, refused: frozenset[tuple[str, int]] = frozenset()) -> tuple[str, Any]:
    """Return the digest that the log comes to, and the refused records."""
    store = DictStore()
    folder = folder_of(kind, store, knows=knows)
    folder.refused_before = refused if kind == "several" else {("", offset) for _, offset in sorted(refused)}
    given = [LOG] if kind == "one" else replayed(folder.marker, [[LOG]])
    changes = folder.fold(given)
    store.apply(changes.puts)
    return digest(store.everything()), changes.refused


@pytest.mark.parametrize("kind", ["one", "several"])
def test_a_replay_that_knows_of_a_refusal_comes_to_the_state_of_the_table(kind: str) -> None:
    live, refused = folded(kind, knows=False)
    assert [(each.offset, each.error, each.passing) for each in refused] == [
        (2, "UnknownSchemaError", True),
        (5, "UnknownSchemaError", True),
    ]
    noted = refusals_in([refusal_note("words", each.offset)[0] for each in refused])
    again, _ = folded(kind, knows=True, refused=noted)
    assert again == live
    assert folded(kind, knows=True)[0] != live, "the registry knows it by now"
    first, _ = folded(kind, knows=True, refused=frozenset({("words", 2)}))
    assert first not in (live, folded(kind, knows=True)[0]), "only what is noted is refused"


@pytest.mark.parametrize("key", [b"\x00refused words", b"\x00refused  7", b"\x00refused words -7"])
def test_a_note_that_no_worker_wrote_is_an_error(key: bytes) -> None:
    with pytest.raises(ChangelogError, match="the note of a refusal is malformed"):
        refusals_in([key])
