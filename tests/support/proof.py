"""The proof that an application did its work exactly once: logs and stores against a model, and against plain
counting.

The model folds the source again, in this process, with other cuts, over a dict. It is compared with the
changelog and the emitted and quarantined records as a reader of committed records sees them, and with the
RocksDB stores byte for byte. Because the model uses holdfast's own folder, plain counts that do not are taken
as well.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import rocksdict
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from holdfast.clock import system_clock
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.positions import Position, decode_position
from holdfast.core.engine.state.codec import APPLIED, META, RowCodec, digest, row_key
from holdfast.dev.fixtures import SessionBroker
from holdfast.kafka.fetching.records import Records
from tests.chaos.counting import EMIT_EVERY, Count
from tests.support.columns import take
from tests.support.harness import Application, Worker, end_transactions
from tests.support.patience import DEADLINE_S

CUT = 777
_ADD = re.compile(rb"add (k[0-9]+) [0-9]{1,18}")

State = dict[bytes, bytes]


def read_topic(broker: SessionBroker, topic: str, *, committed: bool = True) -> dict[int, list[Message]]:
    """Return every record of *topic* by partition; with *committed*, of committed transactions only."""
    consumer = Consumer(
        broker.client_config(
            **{
                "group.id": "proof",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
            }
        )
    )
    try:
        numbers = consumer.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions
        out: dict[int, list[Message]] = {number: [] for number in numbers}
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in out])
        open_ends, until_s = set(out), system_clock.monotonic_s() + DEADLINE_S
        while open_ends:
            assert system_clock.monotonic_s() < until_s, (
                f"{topic} {sorted(open_ends)} not read to the end in {DEADLINE_S:.0f} s"
            )
            for message in consumer.consume(10_000, 0.1):
                error, number = message.error(), message.partition() or 0
                if error is None:
                    out[number].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_ends.discard(number)
                else:
                    assert error.retriable(), f"{topic}/{number}: {error.str()}"
        return out
    finally:
        consumer.close()


def last_offsets(source: Mapping[int, Sequence[Message]]) -> dict[int, int]:
    """Return the offset of the last record of each partition, -1 for none."""
    return {number: messages[-1].offset() or 0 if messages else -1 for number, messages in source.items()}


@dataclass(slots=True)
class DictStore:
    """Committed state in memory, as a folder reads it."""

    state: State = field(default_factory=dict)

    def get(self, key: bytes) -> bytes | None:
        return self.state.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(
            sorted(
                (key, value) for key, value in self.state.items() if key.startswith(prefix) and key >= start
            )
        )


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Expected result of one partition: rows and timers, position, records emitted in order, offsets
    refused.
    """

    state: State
    marker: Position
    emits: list[Emit]
    refused: list[int]


def model(processor: Processor[Any, Any], partition: int, messages: Sequence[Message]) -> Outcome:
    """Fold *messages* here, cut at arbitrary offsets."""
    store = DictStore()
    folder = Folder(processor, store, cache_rows=64)
    out = Outcome(state=store.state, marker=Position((-1,), -1, processor.version), emits=[], refused=[])
    for start in range(0, len(messages), CUT):
        records = Records()
        take(records, messages[start : start + CUT])
        changes = folder.fold([records.batch(partition, processor.columns)])
        assert changes is not None
        for key, value in changes.puts:
            if value is None:
                store.state.pop(key, None)
            else:
                store.state[key] = value
        out.marker = changes.marker
        out.emits += changes.emits
        out.refused += [each.offset for each in changes.refused]
        folder.commit()
    return out


def logged_state(messages: Sequence[Message]) -> tuple[State, Position | None]:
    """Return the state and marker in a changelog partition."""
    state: State = {}
    for message in messages:
        key, value = message.key() or b"", message.value()
        if value is None:
            state.pop(key, None)
        else:
            state[key] = value
    marker = state.get(APPLIED)
    rows = {key: value for key, value in state.items() if key[:1] != META}
    return rows, decode_position(marker) if marker else None


def stored_state(path: Path) -> tuple[State, Position | None]:
    """Return the state and marker in a RocksDB store; its worker must have ended, or the copy is out of
    date.
    """
    database = rocksdict.Rdict(
        str(path), rocksdict.Options(raw_mode=True), access_type=rocksdict.AccessType.read_only()
    )
    try:
        items = {bytes(key): bytes(value) for key, value in database.items()}  # type: ignore[arg-type]
    finally:
        database.close()
    marker = items.get(APPLIED)
    return {key: value for key, value in items.items() if key[:1] != META}, (
        decode_position(marker) if marker else None
    )


def sha(state: State) -> str:
    return digest(sorted(state.items()))


class Proof:
    """Everything an application read and wrote, read once, and the checks on it.

    Each check fails with the difference.
    """

    def __init__(self, application: Application, *, noted: str = "") -> None:
        self.application = application
        broker, settings = application.broker, application.settings
        self.source = read_topic(broker, application.source)
        self.changelogs = {
            each.name: read_topic(broker, each.changelog(settings.app)) for each in application.processors
        }
        self.emitted = read_topic(broker, application.out)
        self.quarantined = read_topic(broker, settings.quarantine_topic)
        if noted:
            self.quarantined = {
                number: _noted(noted, messages) for number, messages in self.quarantined.items()
            }
        self.outcomes = {
            (processor.name, number): model(processor, number, messages)
            for processor in application.processors
            for number, messages in self.source.items()
        }

    def check(self, acked: int | None = None) -> None:
        """Prove everything that the logs can prove; *acked* is the number of records that the load
        reports.
        """
        if acked is not None:
            assert sum(map(len, self.source.values())) == acked, (
                "the source does not hold what was written: the load is at fault"
            )
        self.check_changelogs()
        self.check_counts()
        self.check_emits()
        self.check_quarantine()

    def check_changelogs(self) -> None:
        """Each changelog amounts to the model's rows and timers, at the last record of the source."""
        for (name, number), outcome in self.outcomes.items():
            state, marker = logged_state(self.changelogs[name][number])
            if not self.source[number]:
                assert (state, marker) == ({}, None), f"{name}/{number} has state of an empty source"
                continue
            assert marker == outcome.marker, f"{name}/{number} stands at {marker}, not {outcome.marker}"
            assert sha(state) == sha(outcome.state), f"{name}/{number}: {difference(outcome.state, state)}"

    def check_counts(self) -> None:
        """Per key, `seen` is how often the source says to add: counted here without holdfast's folder."""
        codec: RowCodec[Count] = RowCodec(Count)
        for number, messages in self.source.items():
            added = Counter(
                found[1].decode() for message in messages if (found := _ADD.fullmatch(message.value() or b""))
            )
            state, _ = logged_state(self.changelogs["counts"][number])
            seen = {
                key: codec.decode(value).seen for key, value in state.items() if key.startswith(row_key("k"))
            }
            assert seen == {row_key(key): count for key, count in added.items()}, (
                f"counts of partition {number} are wrong"
            )

    def check_emits(self) -> None:
        """Each emit of the model is in the log exactly once, in order for each key."""
        wanted: dict[str, list[bytes | None]] = defaultdict(list)
        found: dict[str, list[bytes | None]] = defaultdict(list)
        for outcome in self.outcomes.values():
            for emit in outcome.emits:
                wanted[str(emit.key)].append(emit.value)
        for messages in self.emitted.values():
            for message in messages:
                found[(message.key() or b"").decode()].append(message.value())
        for key in wanted.keys() | found.keys():
            assert found[key] == wanted[key], f"emits of {key}: {first_difference(wanted[key], found[key])}"
        for key, values in found.items():
            if key.startswith("k"):
                seen = [int(value.split(b"/")[0]) for value in values if value]
                assert seen == [EMIT_EVERY * at for at in range(1, len(seen) + 1)], (
                    f"emits of {key} skip or repeat: {seen}"
                )

    def check_quarantine(self) -> None:
        """Each refused record is in the quarantine exactly once, under its coordinates."""
        wanted = Counter(
            f"{self.application.source}/{number}/{offset}/{name}"
            for (name, number), each in self.outcomes.items()
            for offset in each.refused
        )
        found = Counter(
            (message.key() or b"").decode() for messages in self.quarantined.values() for message in messages
        )
        assert found == wanted, (
            f"quarantined twice or for nothing: {found - wanted}; missing: {wanted - found}"
        )

    def check_store(self, worker: Worker, place: tuple[str, int]) -> None:
        """The worker's own store of a partition is the changelog, byte for byte.

        The worker must have ended.
        """
        name, number = place
        table = next(each.table for each in self.application.processors if each.name == name)
        state, marker = stored_state(worker.data / table / str(number))
        logged, logged_marker = logged_state(self.changelogs[name][number])
        assert marker == logged_marker, (
            f"{worker.name}: store of {place} stands at {marker}, its changelog at {logged_marker}"
        )
        assert sha(state) == sha(logged), f"{worker.name}: store of {place}: {difference(logged, state)}"


def _noted(header: str, messages: Sequence[Message]) -> list[Message]:
    """Return the messages that workers wrote. Workers name the processor in *header*, in addition to any
    other headers; forged messages lack it.
    """
    return [message for message in messages if header in dict(message.headers() or ())]


def difference(wanted: State, found: State) -> str:
    """Return how two states differ, in short."""
    keys = sorted(key for key in wanted.keys() | found.keys() if wanted.get(key) != found.get(key))
    first = keys[0]
    return (
        f"{len(keys)} keys differ; {first!r} is {_shown(found.get(first))}, not {_shown(wanted.get(first))}"
    )


def _shown(value: bytes | None) -> str:
    return (
        "absent"
        if value is None
        else str(msgspec.msgpack.decode(value[1:]) if value[:1] == b"\x01" else value)
    )


def first_difference(wanted: Sequence[object], found: Sequence[object]) -> str:
    """Return where two sequences part."""
    at = next(
        (at for at, (one, other) in enumerate(zip(wanted, found, strict=False)) if one != other),
        min(len(wanted), len(found)),
    )
    return (
        f"at {at} of {len(wanted)} wanted and {len(found)} found: {list(found[at : at + 3])}, not"
        f" {list(wanted[at : at + 3])}"
    )


def prove(
    application: Application,
    acked: int | None = None,
    *,
    from_source: bool = False,
    lost_ends: bool = False,
    noted: str = "",
) -> Proof:
    """Wait until all of the source is folded, stop the workers politely, and prove everything, their own
    stores included.

    With *from_source* a table was rebuilt from its source because its changelog was gone. Its fold's emits
    and refusals are then written again, because the position went with the changelog; only the state is
    proven.

    With *lost_ends* the only broker has died, and transactions that it left open in topics that no worker
    reads are ended as in docs/operating.md.

    With *noted* the quarantine has records of other programs, and only those with this header are checked.
    """
    ends = last_offsets(read_topic(application.broker, application.source))
    owners = application.wait_applied(ends, DEADLINE_S)
    for worker in application.live:
        worker.stop()
    if lost_ends:
        end_transactions(application.broker.bootstrap)
    proof = Proof(application, noted=noted)
    if from_source:
        proof.check_changelogs()
        proof.check_counts()
    else:
        proof.check(acked)
    for place, worker in owners.items():
        if proof.source[place[1]]:
            proof.check_store(worker, place)
    return proof
