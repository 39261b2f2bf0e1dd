"""The simulated fleet: what it writes is what its books say, by the fold and on a real broker; and the
capture is loaded as it was.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from holdfast.agents.services.rationalizer import processors
from holdfast.config import Settings
from holdfast.core.claims.claim_rows import AnomalyKind, Claim
from holdfast.core.claims.frames import (
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    ReleasingPartition,
    coordination_partition,
    decode,
    encode,
)
from holdfast.core.engine.fold.folding import Batch, Folder
from holdfast.core.engine.state.codec import RowCodec, text_key
from holdfast.dev.demo.processes import capture
from holdfast.dev.demo.processes.fleet import Fleet, FleetPlan, LiveFleet
from holdfast.dev.demo.processes.table_reader import compare, probe_topic
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import ConfigError, DemoError
from tests.support.patience import DEADLINE_S

PARTITIONS = 4
T0_S = 1_790_000_000


class MemoryStore:
    """Rows of one partition, as the folder wants them."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return iter(
            sorted(
                (key, value) for key, value in self.rows.items() if key.startswith(prefix) and key >= start
            )
        )


def lived(fleet: Fleet, ticks: int) -> list[tuple[int, Frame]]:
    """Return the fleet's frames while it comes up and for *ticks* steps, each frame with its time in ms."""
    frames: list[tuple[int, Frame]] = [(T0_S * 1000, frame) for frame in fleet.arrive(T0_S)]
    for tick in range(ticks):
        at_ms = T0_S * 1000 + 50 * tick
        frames += [(at_ms, frame) for frame in fleet.tick(at_ms // 1000)]
    return frames


def folded(records: Iterable[tuple[int, bytes]]) -> dict[str, Claim]:
    """Return the claims that the guarded view makes of (time in ms, value) pairs, none of which may be
    refused.
    """
    (processor,) = processors(Settings())
    store, rows = MemoryStore(), list(records)
    folder: Folder[Any] = Folder(processor, store)
    changes = folder.fold(
        [Batch(range(len(rows)), [at_ms for at_ms, _ in rows], ([value for _, value in rows],))]
    )
    assert changes is not None
    assert changes.refused == []
    codec: RowCodec[Any] = RowCodec(processor.row)
    return {text_key(key): codec.decode(value) for key, value in changes.puts if value is not None}


@pytest.mark.long
def test_the_table_of_claims_is_what_the_books_say_after_hand_overs_restarts_contests_and_zombies() -> None:
    fleet = Fleet(FleetPlan())
    frames = lived(fleet, ticks=400)
    rows = folded((at_ms, encode(frame)) for at_ms, frame in frames)
    compare(rows, fleet.entries)
    counts = fleet.counts
    assert (len(rows), counts.claims, counts.handovers, counts.restarts) == (2_000, 2_000, 400, 40)
    assert counts.zombies == 39  # the last restart's zombie would speak in the next step
    assert {row.anomaly.kind for row in rows.values() if row.anomaly is not None} <= {
        AnomalyKind.FENCED_HEARTBEAT,
        AnomalyKind.FOREIGN_HEARTBEAT,
    }
    assert Counter(type(frame) for _, frame in frames) == {
        ClaimingPartition: counts.claims + counts.contests + counts.handovers,
        Heartbeat: counts.heartbeats + counts.zombies,
        ReleasingPartition: counts.handovers,
    }


@pytest.mark.parametrize(
    "fault",
    ["a release is lost", "a zombie is heard twice", "a heartbeat comes too early", "a claim has no row"],
)
def test_one_frame_too_few_too_many_or_out_of_order_is_seen_in_the_books(fault: str) -> None:
    fleet = Fleet(FleetPlan(clients=16, claims=80))
    frames = [encode(frame) for _, frame in lived(fleet, ticks=60)]
    match fault:
        case "a release is lost":
            del frames[next(at for at, value in enumerate(frames) if value.startswith(b"Releasing"))]
        case "a zombie is heard twice":
            at = next(
                at
                for at, value in enumerate(frames)
                if value.startswith(b"Heartbeat") and value.endswith(b"/0")
            )
            frames.insert(at, frames[at])
        case "a heartbeat comes too early":
            last = (
                len(frames)
                - 1
                - next(at for at, value in enumerate(reversed(frames)) if value.startswith(b"Heartbeat"))
            )
            frames.insert(0, frames.pop(last))
        case "a claim has no row":
            key = encode(
                Heartbeat(
                    1,
                    "i",
                    "c",
                    fleet.entries[7].group_id,
                    fleet.entries[7].topic,
                    fleet.entries[7].partition,
                    0,
                )
            )
            place = b"/".join(key.split(b"/")[5:8])
            frames = [value for value in frames if b"/".join(value.split(b"/")[5:8]) != place]
    with pytest.raises(DemoError, match="of 80 claims differ from what the fleet did"):
        compare(folded((T0_S * 1000, value) for value in frames), fleet.entries)


def test_a_fleet_writes_the_same_whenever_it_is_given_the_same_time() -> None:
    assert lived(Fleet(FleetPlan()), ticks=30) == lived(Fleet(FleetPlan()), ticks=30)
    assert lived(Fleet(FleetPlan()), ticks=30) != lived(Fleet(FleetPlan(seed=21)), ticks=30)


def test_every_claim_has_a_heartbeat_once_an_interval() -> None:
    fleet = Fleet(FleetPlan(clients=16, claims=90, heartbeat_s=0.5))
    before = [entry.offset for entry in fleet.entries]
    for _ in range(fleet.plan.ticks):
        list(fleet.tick(T0_S))
    assert all(entry.offset > offset for entry, offset in zip(fleet.entries, before, strict=True))


def test_a_fleet_too_small_for_its_groups_is_refused() -> None:
    with pytest.raises(ConfigError, match="a fleet of 7 clients"):
        FleetPlan(clients=7, claims=100)
    with pytest.raises(ConfigError, match=r"every 0\.01 s"):
        FleetPlan(heartbeat_s=0.01)


def test_the_desk_has_a_claim_of_its_own_in_every_partition() -> None:
    assert [coordination_partition(probe_topic(place, 7), 7) for place in range(7)] == list(range(7))


# -- on a broker


def place_of(value: bytes) -> int:
    """Return the partition to which a frame's topic hashes."""
    frame = decode(value)
    assert not isinstance(frame, ReleaseGroup)
    return coordination_partition(frame.topic, PARTITIONS)


def settings_for(broker: SessionBroker, topic: str) -> Settings:
    return Settings(coordination_topic=topic, kafka=dict(broker.config))


def whole_log(broker: SessionBroker, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """Return (time in ms, value) of every record, by partition."""
    consumer = Consumer(
        broker.client_config(
            **{"group.id": "fleet-test", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        )
    )
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    try:
        places = [TopicPartition(topic, place, 0) for place in range(PARTITIONS)]
        left = sum(consumer.get_watermark_offsets(place, timeout=DEADLINE_S)[1] for place in places)
        consumer.assign(places)
        until_s = time.monotonic() + DEADLINE_S
        while left and time.monotonic() < until_s:
            for message in consumer.consume(10_000, 0.5):
                value, place = message.value(), message.partition()
                assert message.error() is None
                assert value is not None
                assert place is not None
                found[place].append((message.timestamp()[1], value))
                left -= 1
        assert left == 0
    finally:
        consumer.close()
    return found


def test_a_live_fleet_is_in_the_log_whole_in_order_and_where_its_topics_hash_to(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("fleet", partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
    fleet = Fleet(FleetPlan(clients=16, claims=200, heartbeat_s=0.2))
    with LiveFleet(settings_for(broker, topic), fleet, partitions=PARTITIONS) as live:
        live.arrived()
        until_s = time.monotonic() + DEADLINE_S
        while (fleet.counts.zombies < 3 or fleet.counts.handovers < 20) and time.monotonic() < until_s:
            live.check()
            time.sleep(0.02)
        live.stop()
    log = whole_log(broker, topic)
    assert sum(map(len, log.values())) == live.written
    assert live.ends == {place: len(records) - 1 for place, records in log.items()}
    for place, records in log.items():
        assert all(place_of(value) == place for _, value in records)
    rows = {key: row for records in log.values() for key, row in folded(records).items()}
    compare(rows, fleet.entries)
    assert fleet.counts.zombies >= 3


def test_the_capture_is_loaded_frame_by_frame_into_the_partitions_it_was_taken_from(
    broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("capture", partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"})
    recorded = capture.records()
    capture.load(settings_for(broker, topic), recorded)
    log = whole_log(broker, topic)
    assert len(recorded) == 275
    for place in range(PARTITIONS):
        assert [value.decode() for _, value in log[place]] == [
            each.value for each in recorded if each.partition == place
        ]
    assert all(place_of(each.value.encode()) == each.partition for each in recorded)


def test_a_saved_fleet_continues_as_it_would_have() -> None:
    fleet = Fleet(FleetPlan(clients=16, claims=40, seed=3))
    list(fleet.arrive(100))
    for second in range(101, 130):
        list(fleet.tick(second))
    saved = fleet.saved()
    assert saved.startswith(b"{"), "JSON, which runs nothing when it is read"
    again = Fleet.restored(saved)
    for second in range(130, 200):
        assert list(again.tick(second)) == list(fleet.tick(second))
    assert (again.counts, again.entries) == (fleet.counts, fleet.entries)
    for damaged in (b"", b"\x80\x04.", b"{}", saved[:-5], saved.replace(b'"random":[', b'"random":[1,')):
        with pytest.raises(ConfigError, match="no saved fleet"):
            Fleet.restored(damaged)
