"""The marks of a test's steps for partitions that get no record of them, as workers write them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.emits import Emit
from holdfast.core.engine.origins import ALONE, Mark, StepReached, mark_headers, told_of
from holdfast.testing.logs import TopicRecord


class KitMarks:
    """The marks of all steps, each as soon as there is news: with every record, since each is a transaction
    here.
    """

    def __init__(self, processors: Iterable[Processor[Any, Any]], partitions: int) -> None:
        self._partitions = partitions
        self._steps = [each for each in processors if each.told_topics]
        self._told: dict[tuple[str, int, int], StepReached] = {}
        """The last mark about an origin for a partition, the last item, of a topic."""

    def behind(
        self, step: Processor[Any, Any], origin: int, reached: StepReached, sent: Iterable[TopicRecord]
    ) -> list[Emit]:
        """Return the marks after a record of *origin*, a partition of *step*, which sent records on."""
        for record in sent:
            place = record.topic, origin, record.partition
            known = self._told.get(place)
            if known is not None and (told := told_of(record.headers)) is not None:
                self._told[place] = StepReached(max(known.watermark_ms, told.after_ms), False)
        return self._marks(step, origin, reached)

    def settled(
        self, step: Processor[Any, Any], reached_in: Callable[[int], StepReached | None]
    ) -> list[Emit]:
        """Return the marks by which all partitions of *step* that are at the ends of their logs let go;
        *reached_in* returns how far one has come, None where it has no marks.
        """
        found: list[Emit] = []
        for origin in range(self._partitions):
            if (reached := reached_in(origin)) is not None:
                found += self._marks(step, origin, reached)
        return found

    @property
    def steps(self) -> list[Processor[Any, Any]]:
        return self._steps

    def _marks(self, step: Processor[Any, Any], origin: int, reached: StepReached) -> list[Emit]:
        targets = [origin] if step.in_place else range(self._partitions)
        count = ALONE if step.in_place else self._partitions
        marks: list[Emit] = []
        for topic in step.told_topics:
            for target in targets:
                if self._told.get((topic, origin, target)) != reached:
                    self._told[topic, origin, target] = reached
                    mark = mark_headers(Mark(origin, *reached, count))
                    marks.append(Emit(topic, None, None, mark, target))
        return marks
