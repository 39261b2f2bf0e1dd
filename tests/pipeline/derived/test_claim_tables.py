"""The tables of claims: by a second computation that looks at every moment of the log, after any number of
runs, on both engines.
"""

from __future__ import annotations

import json
import random
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from holdfast.cli.__main__ import main
from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import RESET_INSTANCE
from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.frames import ClaimingPartition, Frame, Heartbeat, ReleaseGroup, ReleasingPartition
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.staleness import is_live, is_reserved
from holdfast.core.engine.fold.folding import Batch
from holdfast.core.engine.state.rows import Rows
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.derived.claim_intervals import INTERVALS, ClaimInterval, claim_intervals
from holdfast.pipeline.derived.claim_takeovers import TAKEOVERS, ClaimTakeover, claim_takeovers
from holdfast.pipeline.derived.derive import derive, derived_path, tables_named
from holdfast.pipeline.derived.table import DerivedOutput, DerivedTable
from holdfast.pipeline.folds.folding import fold_partition
from holdfast.pipeline.folds.partition_fold import beginning_of
from holdfast.pipeline.folds.plan import FoldPlan, all_emits
from holdfast.pipeline.histories.fold import FoldOptions, FoldReport
from tests.core.claims.test_properties import Log, logs
from tests.pipeline.accounts import Record
from tests.pipeline.topics_in_memory import TopicInMemory, land, landed_from
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.scale import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_KAFKA = Settings(app="derived")
STALE_S = 120
States = list[dict[str, GuardedRow]]


def value_of(frame: Frame) -> bytes:
    """Return a frame as it lies in the log, also one that no member of ours would write."""
    head = [
        type(frame).__name__,
        frame.version,
        frame.time_s,
        frame.instance_id,
        frame.client_id,
        frame.group_id,
    ]
    if isinstance(frame, ReleaseGroup):
        return "/".join(map(str, [*head, "", 0, frame.msg_expire_time_s])).encode()
    last = [] if isinstance(frame, ClaimingPartition) else [msgspec.structs.astuple(frame)[6]]
    return "/".join(map(str, [*head, frame.topic, frame.partition, *last])).encode()


# -- the rows by the fold


def rows_by_fold(table: DerivedTable, log: Log) -> tuple[list[Any], list[Any]]:
    """Return the rows of a log that are over, and those as of its end."""
    plan = FoldPlan(
        processor=table.processor, rows=False, emits=all_emits(table.processor, [0], internal_alone=False)
    )
    state = beginning_of(plan, 0)
    told = DerivedOutput(table).told(state.store)
    offsets = list(range(len(log)))
    columns = ([value_of(frame) for frame, _ in log], offsets)
    read = [(Batch(offsets, [at_ms for _, at_ms in log], columns), 1)] if log else []
    folded = fold_partition(plan, 0, [read], state=state, results=told.results)
    batches = [batch for batch in folded if batch.schema == table.schema]
    return (
        [msgspec.convert(row, table.row) for batch in batches for row in batch.to_pylist()],
        [msgspec.convert(row, table.row) for batch in told.current() for row in batch.to_pylist()],
    )


# -- the rows by looking at every moment


def stamped(log: Log) -> Log:
    """Return a log with append times throughout, as a broker stamps them."""
    now_ms, out = 10_000_000, []
    for frame, at_ms in log:
        now_ms = max(now_ms, at_ms)
        out.append((frame, now_ms))
    return out


def seconds(at: datetime | None) -> float:
    return float("inf") if at is None else at.timestamp()


def check_intervals(log: Log) -> None:
    """Compare the owners of partitions, at each moment near a frame or a threshold, with the guarded view as
    of that moment.
    """
    over, current = rows_by_fold(claim_intervals(NO_KAFKA), log)
    every: list[ClaimInterval] = [*over, *current]
    near = {
        at_ms // 1000 + more for _, at_ms in log for more in (-1, 0, 1, STALE_S - 1, STALE_S, STALE_S + 1)
    }
    states = states_of(log)
    for now_s in sorted(near):
        for key, claim in states[bisect_right(log, now_s, key=lambda each: each[1] // 1000)].items():
            if not isinstance(claim, Claim):
                continue
            holders = [
                (each.client_id, each.instance_id, each.epoch)
                for each in every
                if f"{each.group_id}/{each.topic}/{each.topic_partition}" == key
                and seconds(each.held_from) <= now_s < seconds(each.held_until)
            ]
            held = is_live(claim, now_s, STALE_S) or is_reserved(claim)
            assert holders == ([(claim.client_id, claim.instance_id, claim.epoch)] if held else []), (
                now_s,
                key,
            )
    check_frames(log, states, every)


def check_frames(log: Log, states: States, every: list[ClaimInterval]) -> None:
    """Compare each interval's first and last frames, and its offsets, with states folded up to them."""
    for each in every:
        key = f"{each.group_id}/{each.topic}/{each.topic_partition}"
        began, _ = log[each.began_at]
        assert (began.client_id, began.instance_id) == (each.client_id, each.instance_id)
        assert isinstance(began, Heartbeat if each.began_by != "claim" else ClaimingPartition)
        before, after = claim_at(states, each.began_at, key), claim_at(states, each.began_at + 1, key)
        assert after is not None
        assert (after.epoch, after.heartbeat_at_s) == (each.epoch, seconds(each.held_from))
        assert each.offset_from == (None if before is None else before.current_offset)
        assert (each.ended_at is None) == (each.ended_by is None)
        end = len(log) if each.ended_at is None else each.ended_at
        last = claim_at(states, end, key)
        assert last is not None
        assert (last.epoch, last.heartbeat_at_s) == (each.epoch, seconds(each.last_sign))
        told = claim_at(states, end + 1, key) if each.ended_by == "released" else last
        assert told is not None
        assert each.offset_to == told.current_offset
        if each.ended_by == "released":
            assert isinstance(log[end][0], ReleasingPartition)


def states_of(log: Log) -> States:
    """Return the guarded view before each frame of a log, and after the last one."""
    states: States = [{}]
    for frame, at_ms in log:
        states.append(dict(states[-1]))
        fold_guarded(cast(Rows[GuardedRow], states[-1]), frame, at_ms, STALE_S)
    return states


def claim_at(states: States, end: int, key: str) -> Claim | None:
    return cast(Claim | None, states[end].get(key))


def takeovers_model(log: Log) -> Iterator[tuple[Any, ...]]:
    """Yield each takeover, in the order of the log, by looking ahead for the first offset that its new owner
    reports.
    """
    states = states_of(log)
    for at, (frame, _) in enumerate(log):
        if isinstance(frame, ReleaseGroup):
            continue
        key = f"{frame.group_id}/{frame.topic}/{frame.partition}"
        before, after = claim_at(states, at, key), claim_at(states, at + 1, key)
        if before is None or after is None or before.epoch == after.epoch:
            continue
        sign_s = cast(int, before.heartbeat_at_s if before.released_at_s is None else before.released_at_s)
        taken_s = cast(int, after.heartbeat_at_s)
        if any(each.instance_id.startswith(RESET_INSTANCE) for each in (before, after)):
            cause = "reset"
        elif before.released_at_s is not None:
            cause = "released"
        else:
            cause = "expired" if taken_s - sign_s >= STALE_S else "replaced"
        told = first_told(log, states, at, key, after)
        gap = None if told is None or before.current_offset is None else told - before.current_offset
        owners = before.client_id, before.instance_id, after.client_id, after.instance_id
        yield (
            at,
            key,
            cause,
            *owners,
            after.epoch,
            taken_s - sign_s,
            before.current_offset,
            before.proposed_offset,
            told,
            gap,
        )


def first_told(log: Log, states: States, at: int, key: str, owner: Claim) -> int | None:
    for number, (frame, _) in enumerate(log[at:], at):
        claim = claim_at(states, number + 1, key)
        if claim is None or claim.epoch != owner.epoch or claim.released_at_s is not None:
            return None
        mine = (frame.client_id, frame.instance_id) == (owner.client_id, owner.instance_id)
        if (
            isinstance(frame, Heartbeat)
            and mine
            and f"{frame.group_id}/{frame.topic}/{frame.partition}" == key
        ) and frame.current_offset >= 0:
            return frame.current_offset
    return None


def takeover_told(each: ClaimTakeover) -> tuple[Any, ...]:
    key = f"{each.group_id}/{each.topic}/{each.topic_partition}"
    owners = each.from_client, each.from_instance, each.to_client, each.to_instance
    assert each.duration_s == seconds(each.taken) - seconds(each.last_sign)
    offsets = each.offset_before, each.announced_offset, each.offset_after, each.offset_gap
    return (each.taken_at, key, each.cause, *owners, each.epoch, each.duration_s, *offsets)


def check_takeovers(log: Log) -> None:
    over, current = rows_by_fold(claim_takeovers(NO_KAFKA), log)
    assert sorted(map(takeover_told, [*over, *current])) == sorted(takeovers_model(log))
    for each in current:
        claim = claim_at(states_of(log), len(log), f"{each.group_id}/{each.topic}/{each.topic_partition}")
        assert claim is not None
        assert (claim.epoch, claim.released_at_s) == (
            each.epoch,
            None,
        ), "a row is over once its owner has told or left"


@pytest.mark.long
@hypothesis_settings(max_examples=scaled(150), deadline=None)
@given(logs())
def test_the_owner_of_a_claim_at_a_moment_is_in_the_interval_of_that_moment(log: Log) -> None:
    check_intervals(stamped(log))


@pytest.mark.long
@hypothesis_settings(max_examples=scaled(150), deadline=None)
@given(logs())
def test_takeovers_are_those_that_looking_ahead_finds(log: Log) -> None:
    check_takeovers(log)


def with_resets(seed: int, length: int = 60) -> Log:
    """Return a log in which resets claim, beat and give back among members that come, go and fall silent."""
    chance, now_s, log = random.Random(seed), 10_000, list[tuple[Frame, int]]()
    senders = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("admin", f"{RESET_INSTANCE}5e")]
    for _ in range(length):
        now_s += chance.choice([0, 1, 1, 30, 119, 120, 300])
        client, instance = chance.choice(senders)
        place, offset = ("g", chance.choice("tu"), 0), chance.randrange(12)
        kind = chance.choice([Heartbeat, Heartbeat, Heartbeat, ClaimingPartition, ReleasingPartition])
        more = () if kind is ClaimingPartition else (offset,)
        log.append((cast(Any, kind)(now_s, instance, client, *place, *more), now_s * 1000))
    return log


@pytest.mark.parametrize("seed", range(12))
def test_resets_hold_claims_however_long_they_are_silent(seed: int) -> None:
    log = with_resets(seed)
    check_intervals(log)
    check_takeovers(log)


def test_a_log_without_append_times_has_the_times_of_its_frames() -> None:
    log: Log = [
        (ClaimingPartition(1_000, "a1", "a", "g", "t", 0), -1),
        (ReleasingPartition(1_060, "a1", "a", "g", "t", 0, 7), -1),
        (Heartbeat(1 << 62, "b1", "b", "g", "t", 0, 7), -1),
    ]
    [first], [second] = rows_by_fold(claim_intervals(NO_KAFKA), log)
    assert (first.held_from, first.held_until) == (
        datetime.fromtimestamp(1_000, UTC),
        datetime.fromtimestamp(1_060, UTC),
    )
    assert (second.client_id, second.held_from.year) == ("b", 9999)


# -- the tables


@pytest.fixture
def marshal(monkeypatch: pytest.MonkeyPatch) -> TopicInMemory:
    """Give a coordination topic that `land` lands."""
    made = TopicInMemory(NO_KAFKA.coordination_topic)
    landed_from(monkeypatch, made)
    return made


def append(marshal: TopicInMemory, log: Log, partition: int = 0) -> None:
    for frame, at_ms in log:
        put(marshal, partition, value_of(frame), at_ms)


def put(marshal: TopicInMemory, partition: int, value: bytes, at_ms: int) -> None:
    at = marshal.end[partition]
    marshal.logs[partition].append(Record(at, at_ms, None, value, ()))
    marshal.end[partition] = at + 1


def run(lake: Path, name: str, settings: Settings = NO_KAFKA, **more: Any) -> FoldReport:
    [table] = tables_named(name, settings)
    return derive(table, settings, FoldOptions(**{"lake": str(lake), "engine": "local", **more}))


def rows_in(lake: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(derived_path(str(lake), name)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["partition"], row.get("began_at", row.get("taken_at"))))


def model_rows(marshal: TopicInMemory, table: DerivedTable) -> list[dict[str, Any]]:
    """Return the rows of the whole log, folded at once."""
    found = []
    for partition, records in marshal.logs.items():
        log = [(decoded(each.value), each.at_ms) for each in records]
        for is_current, rows in enumerate(rows_by_fold(table, log)):
            found += [
                {"partition": partition, "is_current": bool(is_current), **msgspec.structs.asdict(row)}
                for row in rows
            ]
    return sorted(found, key=lambda row: (row["partition"], row.get("began_at", row.get("taken_at"))))


def decoded(value: bytes | None) -> Frame:
    from holdfast.core.claims.frames import decode

    return decode(value)


TABLES = {INTERVALS: claim_intervals, TAKEOVERS: claim_takeovers}


@pytest.mark.long
@pytest.mark.parametrize("name", TABLES)
def test_after_any_number_of_runs_the_table_is_that_of_one(
    marshal: TopicInMemory, lake: Path, name: str
) -> None:
    whole = {partition: with_resets(partition, 200) for partition in (0, 1)}
    for start in range(0, 200, 40):
        for partition, log in whole.items():
            append(marshal, log[start : start + 40], partition)
        land(marshal, lake)
        report = run(lake, name, max_records=50)
        assert report.records == 80
        assert rows_in(lake, name) == model_rows(marshal, TABLES[name](NO_KAFKA))
    assert run(lake, name).commits == 0


@pytest.mark.variant
def test_both_engines_take_turns_and_write_the_same_rows(
    spark: SparkSession, marshal: TopicInMemory, lake: Path
) -> None:
    for turn, engine in enumerate(("spark", "local", "spark")):
        append(marshal, with_resets(turn, 50), turn % 2)
        land(marshal, lake)
        for name, made in TABLES.items():
            assert run(lake, name, engine=engine).engine == engine
            assert rows_in(lake, name) == model_rows(marshal, made(NO_KAFKA))
    held = spark.sql(
        f"SELECT count(*) FROM delta.`{derived_path(str(lake), INTERVALS)}` WHERE ended_by = 'expired' AND"
        " NOT is_current"
    )
    assert held.collect()[0][0] == sum(row["ended_by"] == "expired" for row in rows_in(lake, INTERVALS))


def test_an_invalid_frame_makes_no_row_and_is_counted(marshal: TopicInMemory, lake: Path) -> None:
    put(marshal, 0, b"nonsense", 1_000)
    append(marshal, with_resets(3, 10))
    land(marshal, lake)
    report = run(lake, INTERVALS)
    assert sum(each.refused for each in report.partitions.values()) == 1


def test_another_interval_of_heartbeats_is_refused(marshal: TopicInMemory, lake: Path) -> None:
    append(marshal, with_resets(1))
    land(marshal, lake)
    run(lake, INTERVALS)
    faster = Settings(app="derived", claim_interval_s=3)
    with pytest.raises(ConfigError, match="settings that its rows depend on"):
        run(lake, INTERVALS, faster)
    run(lake, INTERVALS, faster, rebuild=True)


def test_a_row_that_was_taken_from_the_table_is_found(marshal: TopicInMemory, lake: Path) -> None:
    append(marshal, with_resets(1))
    land(marshal, lake)
    run(lake, INTERVALS)
    DeltaTable(derived_path(str(lake), INTERVALS)).delete("epoch = 1")
    append(marshal, with_resets(2))
    land(marshal, lake)
    with pytest.raises(LakeError, match="was not written by a fold"):
        run(lake, INTERVALS)


@pytest.mark.long
def test_the_command_derives_landed_records_and_vacuums(
    marshal: TopicInMemory, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["--set", "app=derived", *words])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    words = ("pipeline", "derive", "--lake", str(lake))
    code, _, err = command(*words)
    assert (code, "land them first" in err, NO_KAFKA.coordination_topic in err) == (2, True, True)
    append(marshal, with_resets(1))
    land(marshal, lake)
    code, out, err = command(*words, "--output", "json")
    assert code == 0, err
    told = {each["table"]: each["rows"] for each in json.loads(out)}
    assert told == {name: derived_path(str(lake), name) for name in TABLES}
    code, out, err = command(*words, INTERVALS)
    assert (code, INTERVALS in out, "nothing was landed" in err) == (0, True, True)
    assert command("pipeline", "derive", "claims.nothing", "--lake", str(lake))[0] == 2
    code, out, err = command("pipeline", "vacuum", "--lake", str(lake), "--derived", INTERVALS, "--dry-run")
    assert (code, "0 files would be removed" in err) == (0, True), err


# -- live


def take_one(consumer: BlockingClaimConsumer) -> None:
    """Handle a message of the topic, and leave with the claim given back."""
    message = consumer.get(timeout_s=DEADLINE_S)
    assert message is not None
    message.commit()


@pytest.mark.long
def test_two_services_that_share_a_topic_are_in_the_tables(
    embedded_kafka: EmbeddedKafka, lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ending()
    topic = embedded_kafka.create_topic(f"orders-{name}")
    claims = embedded_kafka.create_topic(
        f"claims-{name}", partitions=2, config={"message.timestamp.type": "LogAppendTime"}
    )
    producer = Producer(embedded_kafka.client_config())
    for number in range(4):
        producer.produce(topic, b"%d" % number)
    assert producer.flush(DEADLINE_S) == 0
    settings = Settings(
        kafka={"bootstrap.servers": embedded_kafka.bootstrap}, coordination_topic=claims, claim_interval_s=60
    )
    for client in ("ben", "cleo"):
        with BlockingClaimConsumer(settings, topics=[topic], group="billing", client=client) as consumer:
            take_one(consumer)
    common = ("--set", f"coordination_topic={claims}", "--set", "claim_interval_s=60")
    kafka = ("--bootstrap", embedded_kafka.bootstrap)
    for words in (("land", "--topics", claims), ("derive",)):
        with pytest.raises(SystemExit) as ended:
            main([*common, *kafka, "pipeline", *words, "--lake", str(lake), "--engine", "local"])
        assert not ended.value.code, capsys.readouterr().err
    told = [
        (row["client_id"], row["topic"], row["epoch"], row["ended_by"], row["offset_from"], row["offset_to"])
        for row in rows_in(lake, INTERVALS)
    ]
    assert told == [("ben", topic, 1, "released", None, 1), ("cleo", topic, 2, "released", 1, 2)]
    [over] = rows_in(lake, TAKEOVERS)
    names = ("cause", "from_client", "to_client", "offset_before", "offset_after", "offset_gap")
    assert [over[each] for each in names] == ["released", "ben", "cleo", 1, 1, 0]
