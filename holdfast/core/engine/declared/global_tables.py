"""Global tables: declared once, and folded by each worker from all partitions of their topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.core.engine.declared.retention import FOREVER_MS, declared_ms, spoken
from holdfast.core.engine.declared.sources import FoldWith, Source, require_source
from holdfast.core.engine.emits import Emits
from holdfast.core.engine.state.global_rows import GlobalName
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ConfigError

R = TypeVar("R")

LIMIT_GLOBALS = 8


@dataclass(frozen=True, slots=True, eq=False)
class Global(GlobalName[R]):
    """A table of all partitions of a topic: `rates = Global("rates", Source("rates", Json(Rate)), set_rate,
    row=Rate)`.

    Processors declared with `reads=(rates,)` have it in their folds as `rows.globals[rates]`, read-only. Each
    worker has one copy. *fold* is pure, as that of a processor; it gets the rows of the record's partition
    alone, emits nothing and sets no timers. So records of one key must lie in one partition; the topic may
    have any number of them. `FoldWith` asks for more than the event.

    The topic must be kept whole. So the source's retention is "forever", or undeclared; ConfigError for a
    shorter one.

    Give a changed *fold* or *row* together with a new version of each processor that reads the global.
    """

    source: Source[Any]
    fold: Callable[[Rows[R], Any, int], Emits] | FoldWith

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", require_source(f"global {self.name}", "source", self.source))
        ms = declared_ms(getattr(self.source, "topic", ""))
        if ms is not None and ms != FOREVER_MS:
            raise ConfigError(
                f"global {self.name}: its topic {self.topic} is declared with retention {spoken(ms)}, but"
                " folds that looked into the table cannot be folded again without all of its records: write"
                ' retention="forever", or leave it out'
            )

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
