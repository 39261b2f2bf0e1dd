"""The plan of a fold: its processor, and the results to return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.sources import Input
from holdfast.core.engine.fold.stepping import Transition
from holdfast.core.engine.migrating import Beginning
from holdfast.core.engine.state.handover import HANDOVER_FORMAT, Handover
from holdfast.pipeline.folds.spilling import STATE_MEMORY_BYTES

EVERYWHERE = (1 << 63) - 1
"""An offset, or the number of a choice, that comes after all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitsWanted:
    """The emits of each partition to return: those after *handovers*, where there is one, each with the
    information whether it comes up to *due*.
    """

    handovers: Mapping[int, Handover]
    due: Mapping[int, Handover]

    def ends(self, partition: int) -> list[Handover]:
        """Return the positions at which a transaction ends, that of *due* the last."""
        silent = self.handovers.get(partition)
        return [*([] if silent is None else [silent]), self.due[partition]]


def all_emits(
    processor: Processor[Any, Any], partitions: Iterable[int], *, internal_alone: bool
) -> EmitsWanted:
    """Return the choice of all emits, or with *internal_alone* of those to internal topics: the ones that a
    version emits that is silent otherwise.
    """
    everywhere = Handover(HANDOVER_FORMAT, (EVERYWHERE,) * len(processor.topics), EVERYWHERE)
    upto = dict.fromkeys(partitions, everywhere)
    return EmitsWanted(handovers=upto if internal_alone else {}, due=upto)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherVersion:
    """The version *processor*, folded along with the one of a plan. About *memory_bytes* of the state of
    each, and of the differences, are in memory, and all of it in temporary files where there is more; at most
    *limit_keys* keys of a partition are returned.
    """

    processor: Processor[Any, Any]
    memory_bytes: int
    limit_keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldPlan:
    """The processor to fold and the results to return.

    *rows* False leaves final rows and timers out (their digest is in the summary all the same). *transitions*
    returns every change of a row, or with *of_key*, a table ("" for the processor's own) and a key, only
    those of that row; or with *of_prefixes* of rows of its own whose keys begin so. Folding then is record by
    record, about three times slower. *later_timeout_s* is how long a record may wait for the services that
    its fold needs. *emits* returns the emits as well. *refused* are records, by topic and offset, that the
    table refused for a reason that may have passed.
    """

    processor: Processor[Any, Any]
    rows: bool = True
    emits: EmitsWanted | None = None
    refused: Mapping[int, frozenset[tuple[str, int]]] = field(default_factory=dict)
    transitions: bool = False
    of_key: tuple[str, str] | None = None
    of_prefixes: tuple[str, ...] = ()
    later_timeout_s: float = 600.0
    bases: Mapping[int, Beginning] = field(default_factory=dict)
    """The first states of partitions that did not begin empty."""
    memory_bytes: int = STATE_MEMORY_BYTES
    """About so much of the state of a partition is in memory while it is folded, and all of it in a temporary
    file where there is more.
    """
    other: OtherVersion | None = None
    """Another version that is folded as well, each partition from its beginning: only the differences between
    the two are returned then.
    """

    @property
    def processors(self) -> tuple[Processor[Any, Any], ...]:
        """Return the processors that are folded."""
        return (self.processor, *(() if self.other is None else (self.other.processor,)))

    @property
    def source_inputs(self) -> list[tuple[Input, ...]]:
        """Return the columns that batches of each source must have: those that a version takes."""
        if self.other is None:
            return [each.inputs for each in self.processor.folds]  # a decoder may take one of them twice
        folds = zip(*(each.folds for each in self.processors), strict=True)
        return [tuple(dict.fromkeys(name for each in of for name in each.inputs)) for of in folds]

    def handover(self, partition: int) -> Handover | None:
        """Return the position up to which a partition's emits are not returned."""
        return None if self.emits is None else self.emits.handovers.get(partition)

    def tells(self, each: Transition[Any]) -> bool:
        """Return whether a transition is one of those asked for."""
        if self.of_prefixes:
            return not each.table and each.key.startswith(self.of_prefixes)
        return self.of_key is None or self.of_key == (each.table, each.key)
