"""The destinations of a transaction's records: each emit goes to its topic and partition, in the order in
which it was emitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.kafka.topic_partition import Place
from holdfast.kafka.transactions.transactional_producer import Written
from holdfast.tables.changelog import ChangelogPart, ChangelogWriter


class Noted:
    """A producer without a broker, to topics that have so many partitions; one that is asked for more has
    them from then on.
    """

    transactional_id = "noted"

    def __init__(self, **partitions: int) -> None:
        self.known, self.records = partitions, dict[Place, list[Written]]()
        self.why: object = None

    async def fence(self) -> None: ...

    async def partitions(self, topic: str, *, more_than: int = 0) -> int:
        self.known[topic] = max(self.known[topic], more_than + 1)
        return self.known[topic]

    async def append(self, records: Mapping[Place, Sequence[Written]]) -> dict[Place, int]:
        assert all(records.values()), "no partition gets a batch of nothing"
        self.records = {place: [*each] for place, each in records.items()}
        return {place: len(each) for place, each in records.items()}

    async def end(self, *, commit: bool) -> None: ...

    async def close(self) -> None: ...


def placed(emits: Sequence[Emit], **partitions: int) -> dict[Place, list[Written]]:
    producer = Noted(**partitions)
    writer = ChangelogWriter(producer, changelog="changelog", partition=2)
    part = ChangelogPart([(b"row", b"v")], emits)
    assert asyncio.run(writer.write_parts(lambda: (part,), 10)) == 1
    assert producer.records.pop(("changelog", 2)) == [(b"row", b"v", [])]
    return producer.records


def test_keys_choose_partitions_and_topics_may_take_turns() -> None:
    keys = [f"k{number}".encode() for number in range(40)]
    emits = [Emit(topic, key, topic.encode()) for key in keys for topic in ("few", "many")]
    found = placed(emits, few=2, many=7)
    for topic, partitions in (("few", 2), ("many", 7)):
        for partition in range(partitions):
            wanted: list[Written] = [
                (key, topic.encode(), []) for key in keys if of_key(key, partitions) == partition
            ]
            assert found.pop((topic, partition), []) == wanted
    assert not found


def test_equal_topics_are_one_whatever_object_names_them() -> None:
    emits = [Emit(b"out".decode(), "a", b"%d" % number) for number in range(3)]
    assert placed(emits, out=1) == {("out", 0): [(b"a", b"0", []), (b"a", b"1", []), (b"a", b"2", [])]}


def test_a_partition_that_was_added_since_is_asked_for_and_nothing_before_it_is_lost() -> None:
    emits = [Emit("out", b"a", b"0", partition=0), Emit("out", b"b", b"1", (("h", b"x"),), 3)]
    again = [
        Emit("other", None, b"2"),
        Emit("out", b"c", b"3", partition=0),
        Emit("out", "\u00e9" * 40, b"4", partition=3),
    ]
    assert placed([*emits, *again], out=1, other=1) == {
        ("out", 0): [(b"a", b"0", []), (b"c", b"3", [])],
        ("out", 3): [(b"b", b"1", [("h", b"x")]), ("\u00e9".encode() * 40, b"4", [])],
        ("other", 0): [(None, b"2", [])],
    }
