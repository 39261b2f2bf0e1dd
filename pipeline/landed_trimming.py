"""Deleting, as they are landed, the records of topics that an application declares with retention
"landed".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.retention import landed_topics
from holdfast.errors import HoldfastError
from holdfast.pipeline.trimming import LandedTrim, PartitionTrim

TRIM_EVERY_S = 60.0
REST_SHARE = 10
"""A trim compares what the topic still holds: so long, as a multiple of what one took, it rests before the
next.
"""
END_S = 30.0

Told = Callable[[str], None]


class LandedTopics:
    """The topics of an application that are trimmed once their records are landed in *lake*. *groups* and
    *agents_read* are as for `LandedTrim`.
    """

    def __init__(
        self,
        settings: Settings,
        processors: Sequence[Processor[Any, Any]],
        lake: str,
        *,
        groups: Sequence[str] = (),
        agents_read: Collection[str] = (),
    ) -> None:
        self._settings, self._processors, self._lake = settings, processors, lake
        self._groups, self._agents_read = groups, agents_read
        self.declared = landed_topics(processors)

    def trim(self, landing: Iterable[str]) -> Iterator[PartitionTrim]:
        """Delete what may go of those of the topics *landing* that are declared so, and yield what went.

        Raises as `LandedTrim.plan` does.
        """
        for topic in sorted(self.declared.intersection(landing)):
            found = LandedTrim(
                self._settings,
                self._processors,
                self._lake,
                topics=[topic],
                groups=self._groups,
                agents_read=self._agents_read,
            )
            plan = found.plan()
            found.trim(plan)
            yield from (each for each in plan if each.offsets)

    @contextmanager
    def trimmed(
        self, landing: Callable[[], Collection[str]], told: Told, every_s: float = TRIM_EVERY_S
    ) -> Iterator[None]:
        """Trim every *every_s*, in a thread of its own, while the block runs: *landing* are the topics that
        it lands. One that cannot be trimmed is *told* of, and tried again.
        """
        ended = threading.Event()
        thread = threading.Thread(
            target=self._run, args=(landing, told, every_s, ended), name="holdfast-trim", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(END_S)  # cut in the middle it has deleted less

    def _run(
        self, landing: Callable[[], Collection[str]], told: Told, every_s: float, ended: threading.Event
    ) -> None:
        rest_s = every_s
        while not ended.wait(rest_s):
            began_s = system_clock.monotonic_s()
            for topic in landing():
                if ended.is_set():
                    return
                self._try(topic, told)
            rest_s = max(every_s, REST_SHARE * (system_clock.monotonic_s() - began_s))

    def _try(self, topic: str, told: Told) -> None:
        try:
            for each in self.trim([topic]):
                told(trim_told(each))
        except HoldfastError as error:
            told(f"{topic} is not trimmed, and grows: {error}")
        except Exception as error:  # noqa: BLE001  a thread that died of what a store says would let the topic grow untold
            told(f"{topic} is not trimmed, and grows: {error!r}")


def trim_told(trimmed: PartitionTrim) -> str:
    """Return a line about the deleted offsets, for people.

    >>> trim_told(PartitionTrim(topic="orders", partition=1, first=0, before=7, held_by=""))
    'deleted from orders partition 1 what has landed: offsets 0 to 6'
    """
    return (
        f"deleted from {trimmed.topic} partition {trimmed.partition} what has landed: offsets {trimmed.first}"
        f" to {trimmed.before - 1}"
    )
