"""What the Spark benchmark folds with, in a module that workers can import."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import RowCodec, row_key
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows

if TYPE_CHECKING:
    import pandas  # type: ignore[import-untyped]


class Count(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the cheapest useful fold keeps of a claim."""

    time_s: int = 0
    offset: int = 0
    seen: int = 0
    at_ms: int = 0


NOTHING = Count()


def decode(value: bytes) -> tuple[str, int, int]:
    _, _, time_s, _, _, rest = value.split(b"/", 5)
    key, _, offset = rest.rpartition(b"/")
    return key.decode(), int(time_s), int(offset)


def fold(rows: Rows[Count], event: tuple[str, int, int], at_ms: int) -> None:
    key, time_s, offset = event
    rows[key] = Count(time_s, offset, rows.get(key, NOTHING).seen + 1, at_ms)


def counting(source: str) -> Processor[tuple[str, int, int], Count]:
    """Return the counting fold over *source*."""
    return Processor(name="count", source=source, decode=decode, fold=fold, row=Count)


@cache
def codec_of(row: Any) -> RowCodec[Any]:
    """Return the codec of a row type, made once a worker: there is a call for each claim."""
    return RowCodec(row)


def pandas_fold(processor: Processor[Any, Any]) -> Callable[[pandas.DataFrame], pandas.DataFrame]:
    """Return what applyInPandas runs for each claim: its records in order, decoded and folded alone."""

    def fold_claim(records: pandas.DataFrame) -> pandas.DataFrame:
        import pandas

        records = records.sort_values("offset")
        codec = codec_of(processor.row)
        rows: Rows[Any] = Rows(DictStore(), codec, 16)
        times_ms = records["timestamp"].astype("datetime64[ms]").astype("int64")
        for value, at_ms in zip(records["value"], times_ms, strict=True):
            processor.fold(rows, processor.decode(bytes(value)), int(at_ms))
        changed = {
            row_key(key): codec.encode(row) for key, row in rows.changed()[0].items() if row is not None
        }
        partition = int(records["partition"].iloc[0])
        return pandas.DataFrame(
            {"partition": partition, "key": list(changed), "value": list(changed.values())}
        )

    return fold_claim


ORDERS = "orders"


class Sum(msgspec.Struct, frozen=True):
    """A row of some 100 bytes."""

    count: int
    note: bytes


def fold_sum(rows: Any, event: bytes, at_ms: int) -> None:
    key, _, note = event.partition(b" ")
    name = key.decode()
    before = rows.get(name)
    rows[name] = Sum(1 if before is None else before.count + 1, note)


def sums(version: int) -> Processor[Any, Any]:
    """Return the processor in a version."""
    return Processor(name="sums", source=ORDERS, decode=bytes, fold=fold_sum, row=Sum, version=version)
