"""When internal topics may be trimmed, and how far."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from holdfast.agents.partitions.batches.runner import Owned, Runner
from holdfast.agents.partitions.gate import FoldGate
from holdfast.agents.partitions.held.holdings import Holdings
from holdfast.agents.partitions.upkeep.trimming import Trimming, readers_of
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.streams import Filter, Rekey, count

WORDS: Rekey[Any, Any] = Rekey(name="words", source=Source("lines", Text()), by=str)
KEPT = Filter(name="kept", source=Source(WORDS.to, Text()), keep=bool)
COUNTS = count(name="counts", source=WORDS.to, decode=bytes.decode, key=str)


class Owner:
    """A worker that owns partitions of `words`, `kept` and `counts` at given positions."""

    def __init__(self, held: dict[tuple[str, int], int]) -> None:
        self.processors: dict[str, Processor[Any, Any]] = {each.name: each for each in (WORDS, KEPT, COUNTS)}
        self.holdings = Holdings(self.processors)
        for place, applied in held.items():
            self.own(place, applied)

    def own(self, place: tuple[str, int], applied: int) -> None:
        processor = self.processors[place[0]]
        offsets = dict.fromkeys(processor.topics, applied)
        part: Any = SimpleNamespace(
            processor=processor, offsets=offsets, owner=SimpleNamespace(fenced_in=True)
        )
        self.holdings.owned[place] = Owned(part, cast("Runner", None))

    def due(self) -> dict[tuple[str, int], int]:
        settings = Settings(app="shop", trim_internal=True)
        return Trimming(settings, self.processors, no_thread, gate=FoldGate(), holdings=self.holdings).due()


def no_thread(*arguments: Any) -> Any:
    raise AssertionError("nothing is asked of a broker here")


def test_a_topic_is_trimmed_to_the_lowest_position_of_all_that_read_it_and_sources_never() -> None:
    owner = Owner({("words", 0): 99, ("kept", 0): 40, ("counts", 0): 30, ("kept", 1): 7, ("counts", 1): -1})
    assert owner.due() == {("words.v1", 0): 31}


def test_nothing_is_trimmed_while_another_worker_has_the_position_of_a_reader() -> None:
    owner = Owner({("kept", 0): 40})
    assert owner.due() == {}
    owner.own(("counts", 0), 30)
    assert owner.due() == {("words.v1", 0): 31}
    owner.holdings.owned["counts", 0].part.owner.fenced_in = False  # type: ignore[misc]
    assert owner.due() == {}, "a newer owner may have it"


def test_all_readers_of_a_topic_are_known() -> None:
    assert readers_of([WORDS, KEPT, COUNTS]) == {"words.v1": {"kept", "counts"}}
