"""Global tables: declared once, and folded by each worker from all partitions of their topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.core.engine.declared.retention import FOREVER_MS, declared_ms, spoken
from holdfast.core.engine.declared.serdes import Bytes, Text
from holdfast.core.engine.declared.sources import FoldWith, Source, require_source
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.state.global_rows import GlobalName
from holdfast.core.engine.state.rows import Rows
from holdfast.core.value_types import without_none
from holdfast.errors import ConfigError, FoldError

R = TypeVar("R")

LIMIT_GLOBALS = 8


def keep_value(rows: Rows[Any], value: Any, at_ms: int, key: Any) -> None:
    """Keep a record's value as the row of its key; delete the row for a tombstone."""
    if not isinstance(key, str):
        raise FoldError(f"the record's key is {key!r:.100}: a global without a fold needs keys that are text")
    if value is not None:
        rows[key] = value
    elif key in rows:
        del rows[key]


KEEP_VALUE = FoldWith(keep_value, ("key",))
_PLAIN = {Text: str, Bytes: bytes}


@dataclass(frozen=True, slots=True, eq=False)
class Global(GlobalName[R]):
    """A table of all partitions of a topic: `rates = Global("rates", Source("rates", Json(Rate | None)))` has
    each key's last value, and no row for a key whose last record is a tombstone.

    Processors declared with `reads=(rates,)` have it in their folds as `rows.globals[rates]`, read-only. Each
    worker has one copy. A *fold*, with its *row*, makes other rows of the records: it is pure, as that of a
    processor, gets the rows of the record's partition alone, emits nothing and sets no timers; `FoldWith`
    asks for more than the event. So records of one key must lie in one partition; the topic may have any
    number of them.

    The topic must be kept whole. So the source's retention is "forever", or undeclared; ConfigError for a
    shorter one.

    Give a changed *fold* or *row* together with a new version of each processor that reads the global.
    """

    source: Source[Any]
    fold: Callable[[Rows[R], Any, int], Emits] | FoldWith = KEEP_VALUE
    row: Any = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", require_source(f"global {self.name}", "source", self.source))
        if self.row is None:
            object.__setattr__(self, "row", self._value_type())
        ms = declared_ms(getattr(self.source, "topic", ""))
        if ms is not None and ms != FOREVER_MS:
            raise ConfigError(
                f"global {self.name}: its topic {self.topic} is declared with retention {spoken(ms)}, but"
                " folds that looked into the table cannot be folded again without all of its records: write"
                ' retention="forever", or leave it out'
            )

    def _value_type(self) -> Any:
        """Return the type of the source's values, where the rows are these."""
        serde: Any = self.source.serde
        of, _ = without_none(getattr(serde, "of", _PLAIN.get(type(serde))))
        if self.fold is not KEEP_VALUE or of is None:
            raise ConfigError(f"global {self.name}: row is missing: write row=<the type of its rows>")
        return of

    @property
    def topic(self) -> str:
        """Return the topic that is folded."""
        return str(self.source.topic)


def globals_by_name(reads: Iterable[Global[Any]]) -> dict[str, Global[Any]]:
    """Return *reads* by their names; ConfigError when two that are not the same share one."""
    found: dict[str, Global[Any]] = {}
    for each in reads:
        if found.setdefault(each.name, each) is not each:
            raise ConfigError(
                f"two globals share the name {each.name}: have processors read the same one, or give one"
                " another name"
            )
    return found
