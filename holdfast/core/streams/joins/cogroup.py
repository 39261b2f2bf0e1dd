"""`cogroup`: several sources into one aggregate of each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import OnError, Processor
from holdfast.core.engine.declared.sources import FoldWith, Readable, Source, require_source
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.state.rows import Rows
from holdfast.core.streams.emitting import check_topics
from holdfast.core.streams.joins.joining import (
    Route,
    check_key,
    check_result_key,
    check_stream,
    check_tombstones,
    key_of,
)
from holdfast.errors import ConfigError

A = TypeVar("A")


def cogroup(
    *,
    name: str,
    on: Mapping[Readable[Any], Callable[[A | None, Any], A | None]],
    row: type[A] | Any,
    to: Stream[A] | None = None,
    version: int = 1,
    route: Route | None = by_key,
    in_place: bool = False,
    on_error: OnError = "quarantine",
) -> Processor[Any, A]:
    """Return a processor that keeps one aggregate of the records of each key in several co-partitioned
    sources.

    Each source has a fold of its own: it gets the aggregate so far, None at first, and the event, and returns
    the aggregate with it, of type *row*, or None, which removes it. Each change is sent to *to*, and a
    removal as a tombstone. A record without a key is refused.

    Raises ConfigError, at the declaration, for parameters that do not fit together.

    >>> from holdfast import Json, Source
    >>> from holdfast.testing import Topology
    >>> paid, refunded = Source("paid", Json(int)), Source("refunded", Json(int))
    >>> balances = cogroup(name="balances", row=int, on={
    ...     paid: lambda cents, more: (cents or 0) + more, refunded: lambda cents, less: (cents or 0) - less})
    >>> with Topology([balances]) as topology:
    ...     _ = topology.pipe(paid, 50, key="ada"), topology.pipe(refunded, 20, key="ada")
    ...     topology.table(balances)
    {'ada': 30}
    """
    whose = f"processor {name}"
    if to is not None:
        check_stream(whose, to)
        check_tombstones(whose, to)
        check_result_key(whose, to)
    if not isinstance(on, Mapping):
        raise ConfigError(f"{whose}: on is {on!r:.200}; write a dict: {{Source(...): fold}}")
    folds: dict[Source[Any], FoldWith] = {}
    for given, fold in on.items():
        source = require_source(whose, "on", given)
        check_key(whose, source)
        check_topics(whose, (source.topic,), to)
        if (why := why_uncallable(fold, ("aggregate", "event"))) is not None:
            raise ConfigError(f"{whose}: fold of {str(source.topic)!r} {why}")
        folds[source] = _keeping(fold, to)

    return Processor(
        name=name,
        on=folds,
        row=row,
        version=version,
        route=route,
        emits=() if to is None else (to,),
        in_place=in_place,
        on_error=on_error,
    )


def _keeping(fold: Callable[[A | None, Any], A | None], to: Stream[A] | None) -> FoldWith:
    """Return the fold of a source: it stores the aggregate that *fold* returns, and sends each change of it
    to *to*.
    """

    def keep(rows: Rows[A], event: Any, at_ms: int, key: Any) -> Emits:
        of = key_of(key)
        before = rows.get(of)
        after = fold(before, event)
        if after == before:
            return None
        if after is None:
            del rows[of]
        else:
            rows[of] = after
        return None if to is None else (to.emit(of, after),)  # type: ignore[arg-type]  # it takes tombstones

    return FoldWith(keep, ("key",))
