"""Approximate counts of distinct items per key: each row is a HyperLogLog sketch of Apache DataSketches.

The library is optional: install it with `pip install 'holdfast[sketches]'`, on Spark's executors too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, Self, TypeVar

import msgspec

from holdfast.core.engine.declared.declaring import why_uncallable
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import Readable
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.streams.aggregations import aggregate
from holdfast.core.streams.emitting import Updates, encode_json
from holdfast.errors import ChangelogError, ConfigError, FoldError

E = TypeVar("E")

PRECISION = 12
LEAST_PRECISION, MOST_PRECISION = 4, 18
"""A row of the highest precision takes 130 KB, and each new item rewrites it."""


@cache
def _sketches() -> ModuleType:
    try:
        import datasketches
    except ImportError as error:
        raise ConfigError(
            f"approximate distinct counts need {error.name or error}, which is not installed: pip install"
            " 'holdfast[sketches]'"
        ) from error
    library: ModuleType = datasketches
    return library


class Distinct(msgspec.Struct, frozen=True, array_like=True):
    """A sketch of the items seen; `estimate` is the approximate number of distinct ones.

    *sketch* is in the compact form of DataSketches (HLL_4), which its libraries for Java, C++ and others
    read. It is read and written for each item, so the same items in the same order give the same bytes,
    restarts or not.

    >>> seen = Distinct.of(["ann", "bob", "ann"])
    >>> round(seen.estimate), round(seen.merged(Distinct.of(["cy"])).estimate)
    (2, 3)
    """

    sketch: bytes

    @classmethod
    def of(cls, items: Any = (), precision: int = PRECISION) -> Self:
        """Return the sketch of some items, each a `str`."""
        library = _sketches()
        made = cls(library.hll_sketch(precision, library.HLL_4).serialize_compact())
        for item in items:
            made = made.with_item(item)
        return made

    def with_item(self, item: str) -> Self:
        """Return the sketch with one more item; an empty one counts for nothing, as in all of
        DataSketches.
        """
        read = _read(self.sketch)
        before = read.get_estimate()
        read.update(_text(item))
        if read.get_estimate() == before:
            return (
                self  # a sketch that is read again may lie otherwise in its bytes, though nothing has changed
            )
        return type(self)(read.serialize_compact())

    def merged(self, other: Distinct) -> Self:
        """Return the sketch of the items that either has seen: the merge function for `Session` windows."""
        library, read = _sketches(), [_read(self.sketch), _read(other.sketch)]
        union = library.hll_union(max(each.lg_config_k for each in read))
        for each in read:
            union.update(each)
        return type(self)(union.get_result(library.HLL_4).serialize_compact())

    @property
    def estimate(self) -> float:
        """The approximate number of distinct items; up to a few hundred, practically exact."""
        return float(_read(self.sketch).get_estimate())

    def bounds(self, deviations: int = 2) -> tuple[float, float]:
        """Return the bounds of the true number for 1, 2 or 3 standard deviations (68, 95, 99.7 %)."""
        if deviations not in (1, 2, 3):
            raise ValueError(f"deviations {deviations!r:.80}: 1, 2 or 3")
        read = _read(self.sketch)
        return float(read.get_lower_bound(deviations)), float(read.get_upper_bound(deviations))


def _text(item: Any) -> str:
    if not isinstance(item, str):
        raise FoldError(f"item {item!r:.200} is not text: distinct counts strings")
    try:
        item.encode()
    except UnicodeEncodeError as error:
        raise FoldError(f"item {item!r:.200} is not text: it holds a lone surrogate") from error
    return item


def _read(sketch: bytes) -> Any:
    try:
        return _sketches().hll_sketch.deserialize(sketch)
    except (ValueError, RuntimeError, IndexError) as error:
        raise ChangelogError(
            f"a sketch of {len(sketch)} bytes cannot be read ({error}): no sketch of DataSketches"
        ) from error


def distinct_fold(
    item: Callable[[E], str], precision: int = PRECISION
) -> Callable[[Distinct | None, E], Distinct]:
    """Return a fold that takes each event's *item* into a sketch: for `aggregate` and, with
    `merge=Distinct.merged` where sessions need it, for `Windowed`.

    *precision* p, from 4 to 18, keeps 2**p counters: a row takes up to half as many bytes, and the standard
    error is about 0.83 / sqrt(2**p), or of merged sketches 1.04: with 12, 2 KB and 1.3 %.
    """
    _sketches()
    if type(precision) is not int or not LEAST_PRECISION <= precision <= MOST_PRECISION:
        raise ConfigError(
            f"precision {precision!r:.80}: a whole number from {LEAST_PRECISION} to {MOST_PRECISION}"
        )
    if (why := why_uncallable(item, ("event",))) is not None:
        raise ConfigError(f"item {why}")

    def fold(so_far: Distinct | None, event: E) -> Distinct:
        return Distinct.of((item(event),), precision) if so_far is None else so_far.with_item(item(event))

    return fold


def distinct(
    *,
    name: str,
    source: str | Readable[E],
    key: Callable[[E], str],
    item: Callable[[E], str],
    precision: int = PRECISION,
    emits: str | Updates | None = None,
    decode: Callable[..., E] | None = None,
    **declared: Any,
) -> Processor[E, Distinct]:
    """Return a processor that estimates how many distinct *item*s each key's events have had; its rows are
    `Distinct`. For *precision* see `distinct_fold`.

    The topic in *emits* gets the rounded estimate whenever the sketch changes; the encoder of `updates(topic,
    encode=...)` gets the `Distinct`. The other parameters are those of `aggregate`, without fold and row.

    >>> from holdfast.testing import Topology
    >>> visitors = distinct(name="visitors", source="visits", decode=msgspec.json.decode, key=lambda visit: visit[0],
    ...     item=lambda visit: visit[1], emits="visitors")
    >>> with Topology([visitors]) as topology:
    ...     for visit in (["home", "ann"], ["home", "bob"], ["home", "ann"]):
    ...         _ = topology.pipe("visits", visit, key="home")
    ...     [each.value for each in topology.read("visitors")]
    [b'1', b'2']
    """  # noqa: E501
    try:
        fold = distinct_fold(item, precision)
    except ConfigError as error:
        raise ConfigError(f"processor {name}: {error}") from error
    if isinstance(emits, str):
        encode: Callable[[int], bytes | None] = (
            emits.serde.encode if isinstance(emits, Stream) else encode_json
        )
        emits = Updates(emits, encode=lambda found: encode(round(found.estimate)))
    return aggregate(
        name=name, source=source, decode=decode, key=key, fold=fold, row=Distinct, emits=emits, **declared
    )
