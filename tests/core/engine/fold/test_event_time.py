"""The clock of the records' own times: what moves it, when its timers fire, and that the position has it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Json
from holdfast.core.engine.declared.sources import DecoderInput, FoldColumns, FoldWith, Source
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.fold.folding import Folder, Refused
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.positions import Position, decode_position, encode_position, position_format
from holdfast.core.engine.state.codec import APPLIED, event_key
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import NEVER, Rows
from holdfast.errors import ChangelogError, ConfigError, FoldError


class Said(msgspec.Struct, frozen=True):
    """A record's orders: *at* is its own time, *wake* when to be called."""

    at: Any
    wake: int | None = None
    act: str = ""


def own_time(said: Said) -> int:
    time: int = said.at
    return time


def fold(rows: Rows[str], said: Said | None, at_ms: int) -> Iterator[Emit]:
    if said is not None and said.wake is not None:
        rows.wake_at("k", said.wake, clock="event")
    if said is not None and said.act == "raise":
        raise RuntimeError("the fold failed")
    yield Emit("out", None, b"folded at %d" % at_ms)


def on_event(rows: Rows[str], key: str, due_ms: int) -> Iterator[Emit]:
    rows[key] = f"{rows.get(key, '')}{due_ms} "
    yield Emit("out", key, b"event %d" % due_ms)
    if due_ms == 13:
        raise RuntimeError("on_event failed")
    if due_ms == 20:
        rows.wake_at(key, 20, clock="event")


def on_wake(rows: Rows[str], key: str, due_ms: int) -> Iterator[Emit]:
    yield Emit("out", key, b"append %d" % due_ms)


SAID: Json[Said | None] = Json(Said | None)


def timed(**more: Any) -> Processor[Any, str]:
    declared: dict[str, Any] = {
        "name": "timed",
        "source": "s",
        "decode": SAID.decode,
        "fold": fold,
        "row": str,
        "time": own_time,
        "on_event": on_event,
        "on_wake": on_wake,
        "emits": ("out",),
    }
    return Processor(**declared | more)


def batch(*records: tuple[int, Said | None], start: int = 0) -> Batch:
    offsets = range(start, start + len(records))
    values = [None if said is None else msgspec.json.encode(said) for _, said in records]
    return Batch(offsets, [at_ms for at_ms, _ in records], (values,))


def folded(
    *records: tuple[int, Said | None], cut: int = 100, **more: Any
) -> tuple[list[bytes], list[Refused], Position]:
    """Fold *records* in transactions of *cut*, each by a folder that restarts from the stored position."""
    processor, store = timed(**more), DictStore()
    form = position_format(processor)
    emits: list[bytes] = []
    refused: list[Refused] = []
    value = encode_position(form.start)
    for start in range(0, len(records), cut):
        marker = form.decode(value)
        folder = Folder(
            processor,
            store,
            marker=marker,
        )
        changes = folder.fold([batch(*records[start : start + cut], start=start)])
        assert changes is not None
        key, value = changes.closing()
        assert key == APPLIED
        store.apply(changes.puts)
        emits += [each.value or b"" for each in changes.emits]
        refused += changes.refused
    marker = form.decode(value)
    return emits, refused, marker


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_timer_fires_before_the_record_whose_own_time_gets_there(cut: int) -> None:
    emits, refused, marker = folded(
        (100, Said(5, wake=10)), (101, Said(9)), (90, Said(10)), (300, Said(8)), cut=cut
    )
    assert emits == [b"folded at 100", b"folded at 101", b"event 10", b"folded at 101", b"folded at 300"]
    assert not refused
    assert marker == Position((3,), 300, 1, event_ms=10)


@pytest.mark.parametrize("cut", [1, 2, 100])
def test_a_passed_time_fires_at_the_next_later_event_time_and_not_for_ever(cut: int) -> None:
    emits, _, _ = folded(
        (1, Said(30, wake=20)), (2, Said(30)), (3, Said(31)), (4, Said(31)), (5, Said(40)), cut=cut
    )
    assert [each for each in emits if each.startswith(b"event")] == [b"event 20", b"event 20"]
    assert emits.index(b"event 20") == 2, "before the third record"


def test_append_time_passes_before_event_time() -> None:
    def both(rows: Rows[str], said: Said, at_ms: int) -> Iterator[Emit]:
        rows.wake_at("k", 5)
        rows.wake_at("k", 3, clock="event")
        yield Emit("out", None, b"folded")

    emits, _, _ = folded((1, Said(0)), (9, Said(9)), fold=both)
    assert emits == [b"folded", b"append 5", b"event 3", b"folded"]


@pytest.mark.parametrize("cut", [1, 100])
@pytest.mark.parametrize("at", [1.5, "soon", True, NEVER, -NEVER, None])
def test_a_record_without_a_valid_time_is_refused_and_moves_nothing(at: Any, cut: int) -> None:
    emits, refused, marker = folded((1, Said(4, wake=6)), (2, Said(at)), (3, Said(5)), cut=cut)
    assert [(each.offset, each.stage, each.error) for each in refused] == [(1, "decode", "DecodeError")]
    assert "which is not a time in whole ms" in refused[0].reason
    assert marker.event_ms == 5
    assert emits == [b"folded at 1", b"folded at 3"]


@pytest.mark.parametrize("cut", [1, 100])
def test_a_record_without_a_value_has_no_event_time(cut: int) -> None:
    emits, refused, marker = folded((1, Said(4, wake=6)), (1_000, None), cut=cut)
    assert (emits, refused) == ([b"folded at 1", b"folded at 1000"], [])
    assert marker.event_ms == 4


@pytest.mark.parametrize("cut", [1, 100])
def test_a_record_whose_fold_fails_has_moved_event_time_all_the_same(cut: int) -> None:
    emits, refused, marker = folded((1, Said(4, wake=6)), (2, Said(7, act="raise")), (3, Said(7)), cut=cut)
    assert emits == [b"folded at 1", b"event 6", b"folded at 3"]
    assert [(each.offset, each.stage) for each in refused] == [(1, "fold")]
    assert marker.event_ms == 7


@pytest.mark.parametrize("cut", [1, 100])
def test_a_timer_that_fails_has_fired(cut: int) -> None:
    emits, refused, _ = folded((1, Said(1, wake=13)), (2, Said(14)), (3, Said(15)), cut=cut)
    assert emits == [b"folded at 1", b"folded at 2", b"folded at 3"]
    assert [(each.offset, each.stage) for each in refused] == [(1, "wake")]
    assert refused[0].reason == "event timer 'k' due at 13: on_event failed"


def test_a_rollback_takes_event_time_and_timers_back() -> None:
    folder = Folder(timed(), DictStore())
    assert folder.fold([batch((1, Said(4, wake=6)))]) is not None
    folder.rollback()
    assert folder.event_ms == -NEVER
    changes = folder.fold([batch((1, Said(9)))])
    assert changes is not None
    assert [each.value for each in changes.emits] == [b"folded at 1"]


def test_timers_of_event_time_have_keys_of_their_own_kind() -> None:
    folder = Folder(timed(), DictStore())
    changes = folder.fold([batch((1, Said(4, wake=6)))])
    assert changes is not None
    assert changes.puts == [(event_key("k"), (6).to_bytes(8, "big"))]
    assert event_key("k") == b"\x05k"


def test_a_folder_is_not_resumed_without_its_event_time() -> None:
    with pytest.raises(ChangelogError, match="was folded from other sources"):
        Folder(timed(), DictStore(), marker=Position((7,), 9, 1))


# -- several sources


def joined(*times: bool, fold: Any = fold) -> Processor[Any, str]:
    sources = [
        Source(name, SAID, time=own_time if time else None)  # type: ignore[arg-type]
        for name, time in zip("abc", times, strict=False)
    ]
    return Processor(
        name="joined", on=dict.fromkeys(sources, fold), row=str, on_event=on_event, emits=("out",)
    )


def merged(
    processor: Processor[Any, str], *given: tuple[int, int, Said | None]
) -> tuple[list[bytes], Position]:
    """Fold (source, append time, event) one by one, each after a restart from the stored position."""
    store, form = DictStore(), position_format(processor)
    value, emits = encode_position(form.start), list[bytes]()
    for source, at_ms, said in given:
        marker = form.decode(value)
        folder, merger = Folder(processor, store, marker=marker), Merger(marker)
        merger.offer(source, batch((at_ms, said), start=marker.applied[source] + 1))
        changes = folder.fold(iter(partial(merger.take, (0,) * len(processor.topics)), None))
        assert changes is not None
        store.apply(changes.puts)
        _, value = changes.closing()
        emits += [each.value or b"" for each in changes.emits]
    marker = form.decode(value)
    return emits, marker


def test_event_time_is_the_highest_of_all_sources() -> None:
    emits, marker = merged(joined(True, True), (0, 1, Said(5, wake=10)), (1, 2, Said(12)), (0, 3, Said(7)))
    assert emits == [b"folded at 1", b"event 10", b"folded at 2", b"folded at 3"]
    assert marker.event_ms == 12


def test_a_source_without_time_has_stream_time() -> None:
    emits, marker = merged(
        joined(True, False), (0, 900, Said(5, wake=10)), (1, 3, Said(-1)), (0, 901, Said(6))
    )
    assert emits == [b"folded at 900", b"event 10", b"folded at 900", b"folded at 901"]
    assert marker.event_ms == 900
    _, marker = merged(joined(False, True), (0, -1, Said(1)))
    assert marker.event_ms == -NEVER, "nothing tells a time"


def test_folds_that_ask_for_more_have_event_time_too() -> None:
    def told(rows: Rows[str], said: Said, at_ms: int, topic: str, timestamp: int) -> Iterator[Emit]:
        rows.wake_at("k", 10, clock="event")
        yield Emit("out", None, f"{topic} {timestamp} {said.at}".encode())

    emits, _ = merged(
        joined(True, fold=FoldWith(told, ("topic", "timestamp"))), (0, 4, Said(5)), (0, 3, Said(10))
    )
    assert emits == [b"a 4 5", b"event 10", b"a 3 10"]


# -- the position as stored


def test_the_position_has_event_time_in_formats_of_its_own() -> None:
    one = Position((7,), 9, 1, event_ms=5)
    assert encode_position(one).hex() == "960709010400" + "05"
    assert decode_position(encode_position(one)) == one
    several = Position((4,), 17, 3, (17,), 0, 9, 5, 7, event_ms=-8)
    assert encode_position(several).hex() == "9a" + "9104" + "110305" + "9111" + "00090507" + "f8"
    assert decode_position(encode_position(several)) == several
    reading = Position((4,), 17, 3, (17,), 0, 9, 5, 7, globals=((1, -1),), event_ms=-8)
    assert decode_position(encode_position(reading)) == reading


def test_without_event_time_the_position_is_what_it_was() -> None:
    plain = timed(time=None, on_event=None)
    assert position_format(plain).start == Position((-1,), -1, 1)
    assert encode_position(Position((7,), 9, 1)).hex() == "9407090101"
    told = Source("a", SAID, time=own_time)  # type: ignore[arg-type]
    several: Processor[Any, str] = Processor(
        name="several", on={told: FoldWith(lambda *_: None, ("event_ms",))}, row=str
    )
    start = position_format(several).start
    assert encode_position(start)[3:6] == b"\xff\x01\x02"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (b"\x95\x07\x09\x01\x04\x00", "malformed"),
        (b"\x96\x07\x09\x01\x04\x00\xa1x", "malformed"),
        (b"\x96\x07\x09\x01\x04\x00\xc0", "malformed"),
        (b"\x96\x07\x09\x01\x09\x00\x05", "format 9, this version reads 1 to 8: upgrade the workers"),
    ],
)
def test_a_value_that_is_no_marker_with_event_time_is_refused(value: bytes, why: str) -> None:
    with pytest.raises(ChangelogError, match=why):
        decode_position(value)


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (timed(time=None, on_event=None), timed(), "without event time, this one is declared with on_event="),
        (timed(), timed(time=None, on_event=None), "with event time, this one is declared without on_event="),
        (
            Processor(name="joined", on={Source("a", SAID): fold}, row=str),
            joined(True),
            "without event time, this one is declared with on_event=",
        ),
        (
            joined(True),
            Processor(name="joined", on={Source("a", SAID): fold}, row=str),
            "with event time, this one is declared without on_event=",
        ),
        (timed(), joined(True), "one source, this one is declared with on="),
    ],
)
def test_event_time_comes_and_goes_with_a_version(before: Any, after: Any, why: str) -> None:
    written = position_format(before)
    with pytest.raises(ChangelogError, match=f"{why}.*: raise its version"):
        position_format(after).decode(encode_position(written.start))


# -- declarations


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"time": None}, "on_event needs time="),
        ({"on_event": None}, "time tells event time to on_event, which is missing"),
        ({"time": lambda: 1}, "time takes"),
        ({"on_event": lambda rows: None}, "on_event takes"),
        ({"time": 7}, "time is 7"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(declared: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        timed(**declared)


def test_sources_must_read_a_time_and_each_reads_its_own() -> None:
    with pytest.raises(ConfigError, match=r"on_event needs Source\(\.\.\., time=\.\.\.\)"):
        joined(False, False)
    with pytest.raises(ConfigError, match="has both on= and time: with on= each source has a serde, a time"):
        Processor(  # type: ignore[call-overload]
            name="x", on={Source("a", SAID): fold}, time=own_time, row=str
        )


def test_a_fold_without_event_time_cannot_set_its_timers() -> None:
    plain: Folder[Any] = Folder(timed(time=None, on_event=None), DictStore())
    changes = plain.fold([batch((1, Said(4, wake=6)))])
    assert changes is not None
    assert [each.error for each in changes.refused] == [FoldError.__name__]
    assert "only processors declared with on_event= and time= have event time" in changes.refused[0].reason


# -- what a decoder may ask for


def test_a_decoder_may_ask_for_the_append_time_and_the_topic() -> None:
    def decode(*told: Any) -> tuple[Any, ...]:
        if told[1] == b"bad":
            raise ValueError("bad")
        return told

    def tell(rows: Rows[str], told: tuple[Any, ...], at_ms: int) -> Iterator[Emit]:
        yield Emit("out", None, repr((at_ms, told)).encode())

    inputs: tuple[DecoderInput, ...] = ("timestamp", "value", "topic", "offset", "timestamp")
    processor: Processor[Any, str] = Processor(
        name="x", source="clicks", decode=decode, fold=tell, row=str, inputs=inputs, emits=("out",)
    )
    assert processor.columns == ("value", "offset")
    records = Batch([3, 5], [40, 30], ([b"x", b"y"], [3, 5]))
    changes = Folder(processor, DictStore()).fold([records])
    assert changes is not None
    expected = [b"(40, (40, b'x', 'clicks', 3, 40))", b"(40, (30, b'y', 'clicks', 5, 30))"]
    assert [each.value for each in changes.emits] == expected
    with_bad = Batch([3, 5, 6], [40, 30, -1], ([b"x", b"y", b"bad"], [3, 5, 6]))
    changes = Folder(processor, DictStore()).fold([with_bad])
    assert changes is not None
    assert [each.value for each in changes.emits] == expected, "record by record as well"
    assert [each.offset for each in changes.refused] == [6]


def test_columns_of_a_source_may_be_its_append_time_and_topic() -> None:
    def tell(rows: Rows[str], told: tuple[Any, ...], at_ms: int) -> Iterator[Emit]:
        yield Emit("out", None, repr(told).encode())

    columns = FoldColumns(tell, lambda *told: told, ("timestamp", "topic", "value"))
    processor: Processor[Any, str] = Processor(
        name="x", on={Source("a", SAID): columns}, row=str, emits=("out",)
    )
    assert processor.folds[0].inputs == ("value",)
    emits, _ = merged(processor, (0, 7, Said(1)))
    assert emits == [b"""(7, 'a', b'{"at":1,"wake":null,"act":""}')"""]
