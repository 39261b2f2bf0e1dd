"""The shared data of the pages: the watch, the tables, the declaration of the application."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.clients.tables.client import TableClient
from holdfast.config import Settings
from holdfast.console.asking.child_calls import ChildCalls
from holdfast.console.asking.lake import LakeTopicLine
from holdfast.console.asking.why import Load
from holdfast.console.watching.beside import BesideLook
from holdfast.console.watching.blocking import BlockingCalls
from holdfast.console.watching.groups import GroupDesk
from holdfast.console.watching.outbox import OutboxPicture
from holdfast.console.watching.watch import Watch
from holdfast.core.engine.declared.global_tables import Global, globals_by_name
from holdfast.core.engine.declared.processor import Processor


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleDesk:
    """All that a page may look at."""

    settings: Settings
    processors: tuple[Processor[Any, Any], ...]
    watch: Watch
    tables: TableClient
    calls: BlockingCalls
    children: ChildCalls
    outbox: BesideLook[OutboxPicture] | None = None
    """None where no outbox is named."""
    lake: BesideLook[Sequence[LakeTopicLine]] | None = None
    """None where no lake is named."""
    load: Load | None = None
    """Loads the application again in a process of its own; None where that cannot be done."""
    acting: GroupDesk | None = None
    """For people's acts on groups: these may take long, and pages must not wait for them."""

    @property
    def globals(self) -> Mapping[str, Global[Any]]:
        """Return the global tables that the application reads, by name."""
        return globals_by_name(read for each in self.processors for read in each.reads)
