"""A changelog's writer needs no more of its producer than `TransactionalProducer` says: a scripted one will
do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.positions import Position, encode_position
from holdfast.core.engine.state.codec import APPLIED
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, FencedError
from holdfast.kafka.transactions.transactional_producer import (
    AbortableError,
    ProducerFactory,
    TransactionalProducer,
    UndeliverableError,
    Written,
)
from holdfast.tables import changelog
from holdfast.tables.changelog import ChangelogWriter
from tests.support.patience import DEADLINE_S

LOG, OUT = ("log", 3), ("out", 1)
MARKER = Position((7,), 1_000, 1)


class ScriptedProducer:
    """Keeps the committed records in memory. *faults* are raised by its next appends and ends."""

    def __init__(self, transactional_id: str, *faults: Exception | None) -> None:
        self.transactional_id, self.why = transactional_id, object()
        self._faults = list(faults)
        self._open: list[tuple[Place, Written]] = []
        self.committed: dict[Place, list[Written]] = {}
        self.calls: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def _called(self, what: str) -> None:
        self.calls.append(what)
        await self.answers.wait()

    def _fail(self) -> None:
        if self._faults and (fault := self._faults.pop(0)) is not None:
            raise fault

    async def fence(self) -> None:
        await self._called("fence")

    async def partitions(self, topic: str, *, more_than: int = 0) -> int:
        await self._called(f"partitions of {topic}")
        return more_than + 1

    async def append(self, records: Mapping[Place, Sequence[Written]]) -> dict[Place, int]:
        await self._called("append")
        self._fail()
        self._open += [(place, each) for place, found in records.items() for each in found]
        return {place: len(self.committed.get(place, ())) + len(found) for place, found in records.items()}

    async def end(self, *, commit: bool) -> None:
        await self._called("commit" if commit else "abort")
        if commit:
            self._fail()
            for place, each in self._open:
                self.committed.setdefault(place, []).append(each)
        self._open.clear()

    async def close(self) -> None:
        await self._called("close")


def changes(*emits: Emit) -> Changes:
    return Changes(marker=MARKER, records=1, puts=[(b"\x02a", b"1"), (b"\x02b", None)], emits=list(emits))


def writer_of(producer: TransactionalProducer) -> ChangelogWriter:
    return ChangelogWriter(producer, changelog=LOG[0], partition=LOG[1])


def test_a_class_that_has_its_methods_makes_producers() -> None:
    make: ProducerFactory = ScriptedProducer
    assert make("me").transactional_id == "me"


def test_the_marker_is_the_last_record_and_all_of_it_is_one_transaction() -> None:
    async def run() -> None:
        producer = ScriptedProducer("me")
        writer = writer_of(producer)
        await writer.fence(1)
        assert await writer.write(changes(Emit("out", "k", b"v", partition=1)), (), 1) == 3
        await writer.close()
        assert producer.calls == [
            "fence",
            "partitions of log",
            "partitions of out",
            "append",
            "commit",
            "close",
        ]
        assert [key for key, _, _ in producer.committed[LOG]] == [b"\x02a", b"\x02b", APPLIED]
        assert producer.committed[LOG][-1][1] == encode_position(MARKER)
        assert producer.committed[OUT] == [(b"k", b"v", [])]

    asyncio.run(run())


def test_an_abortable_transaction_is_aborted_and_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog, "_BACKOFF_S", 0.001)

    async def run() -> None:
        producer = ScriptedProducer("me", None, AbortableError("sequence lost"))
        assert await writer_of(producer).write(changes(), (), DEADLINE_S) == 3
        assert producer.calls == ["append", "commit", "abort", "append", "commit"]
        assert len(producer.committed[LOG]) == 3
        assert str(producer.why) == "sequence lost"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("fault", "calls"),
    [
        (UndeliverableError("out", "too large"), ["append", "abort"]),
        (FencedError("another owner"), ["append"]),
    ],
)
def test_a_refusal_ends_the_transaction_and_a_fence_leaves_it_to_the_newer_owner(
    fault: Exception, calls: list[str]
) -> None:
    async def run() -> None:
        producer = ScriptedProducer("me", fault)
        with pytest.raises(type(fault)):
            await writer_of(producer).write(changes(), (), DEADLINE_S)
        assert producer.calls == calls
        assert not producer.committed

    asyncio.run(run())


def test_a_producer_that_does_not_answer_is_waited_for_no_longer_than_asked() -> None:
    async def run() -> None:
        producer = ScriptedProducer("me")
        producer.why = "the broker is away"
        producer.answers.clear()
        with pytest.raises(
            BrokerError, match=r"me: transaction failed: not settled within 0\.01 s: the broker is away"
        ):
            await writer_of(producer).write(changes(), (), 0.01)

    asyncio.run(run())
