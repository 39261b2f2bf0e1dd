"""`holdfast groups` against a real broker, as a person or a script runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn, cast

import pytest
import typer
from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.cli.__main__ import main
from holdfast.cli.asked import StopRequest
from holdfast.cli.groups.groups import _carried_out, _teller
from holdfast.clients.groups.admin import GroupAdmin, ResetPlan
from holdfast.clients.groups.records import GroupKind, ResetProgress, ResetStep
from holdfast.core.claims.lanes import lane_topic
from holdfast.core.claims.resets import RESETS_TOPIC, Aim, Where
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.errors import BrokerError, GroupError, HoldfastError, ResetStoppedError
from holdfast.pipeline.topic import TopicLog
from tests.support.group_desk import GroupDesk
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.support.signals import as_at_a_terminal

Run = Callable[..., tuple[int, str, str]]


INTERVAL_S = 600
"""So long that a heartbeat is fresh for the whole of a test on a busy machine too."""


@pytest.fixture
def desk(broker: SessionBroker, fresh_topic: FreshTopic) -> Iterator[GroupDesk]:
    made = GroupDesk(broker, fresh_topic, interval_s=INTERVAL_S)
    made.resets = RESETS_TOPIC  # what the command writes to
    yield made
    made.close()


@pytest.fixture
def run(
    desk: GroupDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*arguments: str) -> tuple[int, str, str]:
        told = [f"coordination_topic={desk.coordination}", f"claim_interval_s={INTERVAL_S}"]
        given = [*(part for each in told for part in ("--set", each)), "--bootstrap", desk.broker.bootstrap]
        with pytest.raises(SystemExit) as left:
            main(["groups", arguments[0], "--timeout", str(DEADLINE_S), *arguments[1:], *given])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return command


def lines(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def ledger(desk: GroupDesk, topic: str) -> str:
    """Leave an empty consumer group with committed offsets."""
    group = f"ledger-{topic}"
    consumer = Consumer(desk.broker.client_config(**{"group.id": group}))
    consumer.commit(offsets=[TopicPartition(topic, 0, 20)], asynchronous=False)
    consumer.close()
    return group


def test_groups_are_listed_with_their_type_and_state(desk: GroupDesk, run: Run) -> None:
    topic = desk.topic()
    group = ledger(desk, topic)
    desk.hold("worker-7/i7", topic, {0: 40, 1: 41})
    code, out, _ = run("list")
    head, *rest = lines(out)
    assert (code, head) == (0, ["GROUP", "TYPE", "STATE", "#MEMBERS", "#PARTITIONS", "HELD"])
    assert ["shop", "claim", "Stable", "1", "2", "2"] in rest
    assert [group, "consumer", "Empty", "0", "0", "0"] in rest
    code, out, _ = run("list", "--type", "claim", "-o", "json")
    (found,) = json.loads(out)
    assert found == {
        "group": "shop",
        "type": "claim",
        "state": "Stable",
        "members": 1,
        "partitions": 2,
        "partitions_held": 2,
        "coordinator": None,
        "assignment_strategy": None,
        "paused_until_s": None,
        "resets": [],
    }


def test_lanes_are_described_under_their_partition_and_a_group_without_them_has_no_column_for_them(
    desk: GroupDesk, run: Run
) -> None:
    topic, plain = desk.topic(partitions=1), desk.topic("clicks", partitions=1)
    for lane, offset in enumerate((30, 45)):
        desk.hold(f"m{lane}/i", lane_topic(topic, lane, 2), {0: offset})
    desk.hold("m/i", plain, {0: 1}, group="other")
    code, out, _ = run("describe", "shop")
    assert code == 0
    assert lines(out)[0][:7] == [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "LANE",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
    ]
    assert [line[1:8] for line in lines(out)[1:]] == [
        [topic, "0", "all-of-2", "30", "50", "20", "-"],
        [topic, "0", "0-of-2", "30", "50", "-", "m0-i"],
        [topic, "0", "1-of-2", "45", "50", "-", "m1-i"],
    ]
    assert "LANE" not in lines(run("describe", "other")[1])[0]


def test_a_group_is_described_in_the_columns_of_kafka_consumer_groups(desk: GroupDesk, run: Run) -> None:
    topic = desk.topic()
    group = ledger(desk, topic)
    desk.hold("worker-7/i7", topic, {0: 40})
    head = [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]
    of_claims = [name for name in head if name != "HOST"]
    for name, columns, row in (
        ("shop", of_claims, ["shop", topic, "0", "40", "50", "10", "worker-7-i7", "worker-7"]),
        (group, head, [group, topic, "0", "20", "50", "30", "-", "-", "-"]),
    ):
        code, out, _ = run("describe", name)
        assert (code, lines(out)) == (0, [columns, row])
    assert lines(run("describe", "shop", "--detail")[1])[0] == [
        *of_claims,
        "STATUS",
        "OWNER-EPOCH",
        "HEARTBEAT-AGE-S",
    ]
    assert lines(run("describe", "shop", "--members", "--detail")[1]) == [
        ["GROUP", "CONSUMER-ID", "CLIENT-ID", "#PARTITIONS", "OBEYS-PAUSE", "ASSIGNMENT"],
        ["shop", "worker-7-i7", "worker-7", "1", "true", f"{topic}(0)"],
    ]
    told = lines(run("describe", group, "--state")[1])
    assert told[0] == [
        "GROUP",
        "TYPE",
        "COORDINATOR",
        "ASSIGNMENT-STRATEGY",
        "STATE",
        "#MEMBERS",
        "PAUSED-UNTIL",
        "RESETS",
    ]
    assert told[1][:2] == [group, "consumer"]
    (member,) = json.loads(run("describe", "shop", "--members", "-o", "json")[1])
    assert member["assignment"] == {topic: [0]}
    (position,) = json.loads(run("describe", "shop", "-o", "json")[1])
    assert position["status"] == "fresh"
    assert [*position] == [
        *(name.lower().replace("-", "_") for name in head),
        "status",
        "owner_epoch",
        "heartbeat_age_s",
        "lane",
    ]
    assert run("describe", "absent")[0] == 1
    assert run("describe", "shop", "--members", "--state")[0] == 2


def test_a_group_is_paused_and_resumed_and_refused_with_names(desk: GroupDesk, run: Run) -> None:
    topic = desk.topic()
    desk.hold("worker-7/i7", topic, {0: 40})
    began_s = desk.now_s
    code, out, err = run("pause", "shop", "--for", "10m", "-o", "json")
    assert (code, json.loads(out)["by"]) == (0, "holdfast-admin")
    assert "within a heartbeat interval" in err
    assert began_s + 600 <= json.loads(out)["paused_until_s"] <= desk.now_s + 600
    assert lines(run("describe", "shop", "--state")[1])[1][:6] == ["shop", "claim", "-", "-", "Paused", "1"]
    code, out, _ = run("resume", "shop")
    assert (code, lines(out)) == (0, [["GROUP", "STATE", "FREED-PARTITIONS"], ["shop", "resumed", "0"]])
    assert run("pause", "shop", "--for", "soon")[0] == 2
    desk.hold("go-1/g1", topic, {1: 5}, capable=False)
    for arguments in (
        ("pause", "shop", "--for", "1m"),
        ("reset-offsets", "shop", "--to-earliest", "--execute"),
    ):
        code, _, err = run(*arguments)
        assert code == 1
        assert f"go-1-g1 (shop: {topic}/1)" in err


def test_a_reset_shows_what_it_would_do_and_does_it_when_asked_to(desk: GroupDesk, run: Run) -> None:
    topic = desk.topic()
    desk.hold("worker-7/i7", topic, {0: 40, 1: 41})
    desk.give_back("worker-7/i7", topic, {0: 40, 1: 41})
    moves = [["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"], ["shop", topic, "1", "41", "0"]]
    code, out, err = run("reset-offsets", "shop", "--to-earliest", "--topic", f"{topic}:1")
    assert (code, lines(out)) == (0, moves)
    assert "nothing was changed" in err
    assert desk.offsets() == {(topic, 0): 40, (topic, 1): 41}
    code, out, err = run("reset-offsets", "shop", "--to-earliest", "--topic", f"{topic}:1", "--execute")
    assert (code, lines(out)) == (0, moves)
    assert [line for line in err.splitlines() if "/" not in line] == [
        "paused",
        "claimed",
        "decided",
        "resumed",
    ]
    assert desk.offsets() == {(topic, 0): 40, (topic, 1): 0}
    for options, offsets in (
        (["--shift-by", "-3"], [37, 0]),
        (["--to-offset", "5"], [5, 5]),
        (["--to-latest"], [50, 50]),
        (["--to-datetime", "2024-05-01T12:00:00Z"], [0, 0]),
        (["--by-duration", "P3650D"], [0, 0]),
    ):
        code, out, _ = run("reset-offsets", "shop", *options, "-o", "json")
        assert (code, [move["new_offset"] for move in json.loads(out)]) == (0, offsets), options
    for wrong in (
        [],
        ["--to-earliest", "--to-latest"],
        ["--to-datetime", "now"],
        ["--to-earliest", "--topic", ":1"],
    ):
        assert run("reset-offsets", "shop", *wrong)[0] == 2, wrong
    assert run("reset-offsets", "shop", "--to-earliest", "--topic", "absent")[0] == 1


def test_a_consumer_group_is_reset_by_the_same_command(desk: GroupDesk, run: Run) -> None:
    topic = desk.topic()
    group = ledger(desk, topic)
    code, out, _ = run("reset-offsets", group, "--shift-by", "-5", "--execute", "-o", "json")
    assert (code, json.loads(out)) == (
        0,
        [{"group": group, "topic": topic, "partition": 0, "current_offset": 20, "new_offset": 15}],
    )
    assert json.loads(run("describe", group, "-o", "json")[1])[0]["current_offset"] == 15


@pytest.mark.variant
def test_a_group_that_has_read_all_records_has_no_lag_though_markers_close_the_log(
    desk: GroupDesk, run: Run
) -> None:
    topic, end = desk.topic("emitted", partitions=1, records=50), 50
    group = f"agents-{topic}"
    producer = Producer(desk.broker.client_config(**{"transactional.id": topic}))
    producer.init_transactions(DEADLINE_S)

    def transact(values: int, *, commit: bool) -> None:
        producer.begin_transaction()
        for _ in range(values):
            producer.produce(topic, b"x", partition=0)
        producer.flush(DEADLINE_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_S)

    def ended(topic: str) -> int:
        with TopicLog(desk.settings, topic) as log:
            return log.ends([0])[0]

    def describe(at: int) -> tuple[int, int]:
        consumer = Consumer(desk.broker.client_config(**{"group.id": group}))
        consumer.commit(offsets=[TopicPartition(topic, 0, at)], asynchronous=False)
        consumer.close()
        code, out, err = run("describe", group, "-o", "json")
        assert code == 0, err
        (found,) = json.loads(out)
        return found["lag"], found["log_end_offset"]

    transact(3, commit=True)
    wait_for("the marker", lambda: ended(topic) == end + 4, DEADLINE_S)
    assert describe(end + 3) == (0, end + 4), "behind the last record lies its transaction's marker only"
    assert describe(end + 2) == (2, end + 4)
    transact(2, commit=False)
    wait_for("the marker", lambda: ended(topic) == end + 7, DEADLINE_S)
    assert describe(end + 3) == (0, end + 7), "nobody is given what was aborted"
    transact(1, commit=True)
    wait_for("the marker", lambda: ended(topic) == end + 9, DEADLINE_S)
    assert describe(end + 3) == (6, end + 9), "a record is there again"
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(DEADLINE_S)
    assert describe(end + 8) == (2, end + 10), "what may yet be committed counts"
    producer.abort_transaction(DEADLINE_S)


def test_a_reset_prints_each_step_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal it wrote the members it waited for five times a second."""
    tell = _teller()
    waiting = ResetProgress(step=ResetStep.WAITING, total=1, waiting_for=("anna",))
    for progress in (waiting, waiting, ResetProgress(step=ResetStep.MOVING, done=1, total=4), waiting):
        tell(progress)
    line = "waiting for anna to give back 1 partition"
    assert capsys.readouterr().err.splitlines() == [line, f"{ResetStep.MOVING} 1/4", line]


class Failing:
    """An administrator whose resets fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def reset_offsets(self, plan: ResetPlan, **how: Any) -> NoReturn:
        raise self._error


def carried_out(error: Exception, *, asked: bool) -> None:
    stop = StopRequest()
    if asked:
        stop.set()
    plan = ResetPlan(group="shop", kind=GroupKind.CLAIM, aim=Aim(Where.EARLIEST), moves=())
    _carried_out(cast(GroupAdmin, Failing(error)), plan, 1.0, stop)


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("error", [BrokerError, GroupError])
def test_what_fails_after_a_signal_is_no_reset_that_was_given_up(
    error: type[HoldfastError], asked: bool
) -> None:
    """It ended with 130 when it was unknown whether the reset was decided, or reported the outage and no
    signal.
    """
    with pytest.raises(error) as failed:
        carried_out(error("whether it was decided is unknown"), asked=asked)
    assert getattr(failed.value, "__notes__", []) == ["a signal had asked to give the reset up"] * asked


def test_130_says_that_everything_was_given_back() -> None:
    with pytest.raises(typer.Exit) as left:
        carried_out(ResetStoppedError("stopped"), asked=True)
    assert left.value.exit_code == 130
    held = ResetStoppedError("stopped")
    held.add_note("cleaning up failed too")
    with pytest.raises(ResetStoppedError):
        carried_out(held, asked=True)


@pytest.mark.variants(
    "waiting for-SIGINT",
    "paused-SIGTERM",
    "paused-SIGINT",
    "claimed-SIGINT",
    "decided-SIGINT",
    "resumed-SIGTERM",
)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda each: each.name)
@pytest.mark.parametrize("line", ["paused", "waiting for", "claimed", "decided", "resumed"])
def test_a_reset_that_is_terminated_leaves_no_group_paused(
    desk: GroupDesk, run: Run, line: str, number: signal.Signals
) -> None:
    """SIGTERM left it paused for a quarter of an hour, or ended in a traceback of librdkafka's calls."""
    topic = desk.topic()
    desk.hold("worker-7/i7", topic, {0: 40})
    if line != "waiting for":
        desk.give_back("worker-7/i7", topic, {0: 40})
    told = [f"coordination_topic={desk.coordination}", f"claim_interval_s={INTERVAL_S}"]
    given = [*(part for each in told for part in ("--set", each)), "--bootstrap", desk.broker.bootstrap]
    with as_at_a_terminal():
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "holdfast.cli", "groups", "reset-offsets", "shop"),
                *("--to-earliest", "--execute", "--timeout", str(DEADLINE_S), *given),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert process.stderr is not None
    while not (said := process.stderr.readline()).startswith(line):
        assert said, f"it ended before it said {line}"
    if line == "waiting for":
        assert lines(run("describe", "shop", "--state")[1])[1][4] == "Paused"
    for _ in range(2):  # as a shell that ends a group of processes may reach one of them twice
        process.send_signal(number)
    shown, more = process.communicate(timeout=DEADLINE_S)
    assert "Traceback" not in more
    if line in ("decided", "resumed"):
        assert process.returncode == 0
        assert topic in shown
    elif process.returncode or line == "waiting for":
        assert process.returncode == 130
        assert "stopped before it was decided: every partition keeps its offset" in more
    state = lines(run("describe", "shop", "--state")[1])[1][4]
    assert state == ("Stable" if line == "waiting for" else "Empty")
