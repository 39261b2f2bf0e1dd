"""A fault of a bronze table, with its position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FaultKind = Literal[
    "stranger",
    "chain",
    "missing",
    "extra",
    "changed",
    "twice",
    "file",
    "topic",
    "unreadable",
    "statistics",
    "schema",
]
"""stranger: a commit of another program changed rows. chain: commits do not follow each other, or are gone.
missing, extra: rows too few or too many. changed: as many rows, of which some are others. twice: an offset is
there again. file: a file differs from the log. topic: the topic is another. unreadable: the rows cannot be
read. statistics: a file's statistics in log or footer are wrong. schema: the table has other columns.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFault:
    """One fault: *told* says it in words. *first* and *last* are the offsets between which it lies, both
    included; *version* is the commit's, where one is to blame; *file* is within the table.
    """

    kind: FaultKind
    table: str
    told: str
    partition: int | None = None
    first: int | None = None
    last: int | None = None
    version: int | None = None
    file: str | None = None
