"""`holdfast claims`: found by the workers topic of a real broker, asked over HTTP, shown in the columns of
kafka-consumer-groups.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast.agents.services import rationalizer
from holdfast.cli.__main__ import main
from holdfast.cli.groups import claims as command
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key, pause_key
from holdfast.core.claims.claim_rows import Anomaly, AnomalyKind, Claim, Pause
from holdfast.core.claims.frames import coordination_partition
from holdfast.core.engine.query_wire import encode_json
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import NotReadyError
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S, VAIN_S

PARTITIONS = 4


class Fleet:
    """A worker in a thread, announced on the workers topic of its own application, that holds the claims a
    test puts.
    """

    def __init__(self, broker: SessionBroker) -> None:
        self.broker = broker
        self.settings = Settings(
            app=f"claims-{ending()}",
            web_port=free_ports(1)[0],
            kafka={"bootstrap.servers": broker.bootstrap},
            web_token="t",
            coordination_topic=f"marshal-{ending()}",
        )
        self.now_s = system_clock.now_ms() // 1000
        self._processor = rationalizer.processors(self.settings)[0]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.worker: MemoryWorker = self._run(self._open())
        self.broker.create_topic(
            self.settings.workers_topic, config={"cleanup.policy": "compact"}, exact=True
        )
        self.announce()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self.worker.__aexit__(kind, error, traceback))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()
        self.broker.delete_topics([self.settings.workers_topic])

    async def _open(self) -> MemoryWorker:
        return await MemoryWorker(self.settings, [self._processor], partitions=PARTITIONS).__aenter__()

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(DEADLINE_S)

    def announce(self) -> None:
        producer = Producer(self.broker.client_config())
        producer.produce(
            self.settings.workers_topic, key=self.worker.url, value=encode_json(self.worker.claims())
        )
        assert producer.flush(DEADLINE_S) == 0

    def claim(self, group: str, topic: str, partition: int, *, age_s: int = 0, **changes: Any) -> None:
        """Put a claim of client "worker-7", instance "3c5a0f1e", with a heartbeat *age_s* ago."""
        claim = Claim(
            "worker-7", "3c5a0f1e", 2, self.now_s - age_s, None, 40, None, self.now_s - age_s, ("0badcafe",)
        )
        claim = msgspec.structs.replace(claim, **changes)
        self.worker.put(
            self._processor,
            coordination_partition(topic, PARTITIONS),
            claim_key(group, topic, partition),
            claim,
            offset=1_000,
        )

    def pause(self, group: str, partition: int, *, for_s: int) -> None:
        pause = Pause(self.now_s + for_s, self.now_s, "admin", "1")
        self.worker.put(self._processor, partition, pause_key(group), pause, offset=1_000)


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fleet(broker: SessionBroker) -> Iterator[Fleet]:
    with Fleet(broker) as made:
        yield made


@pytest.fixture
def run(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*arguments: str) -> tuple[int, str, str]:
        told = fleet.settings
        patience = ("--timeout", str(DEADLINE_S))
        given = [
            "--set",
            f"app={told.app}",
            "--set",
            f"web_token={told.web_token}",
            "--bootstrap",
            told.bootstrap_servers,
        ]
        with pytest.raises(SystemExit) as left:
            main(["claims", arguments[0], *patience, *arguments[1:], *given])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return command


def test_a_list_that_waits_reflects_every_frame_there_is_or_says_that_it_does_not_yet(
    fleet: Fleet, run: Run, broker: SessionBroker
) -> None:
    """A worker that has just begun is ready before it has folded the frames that are there."""
    coordination = fleet.settings.coordination_topic
    broker.create_topic(coordination, partitions=PARTITIONS, exact=True)
    producer = Producer(broker.client_config())
    place = coordination_partition("orders", PARTITIONS)
    for _ in range(1_001):
        producer.produce(coordination, value=b"x", partition=place)
    assert producer.flush(DEADLINE_S) == 0
    named = ("list", "--group", "shop", "--set", f"coordination_topic={coordination}")
    assert run(*named)[0] == 0, "nobody is waited for unless told"
    for timeout_s in VAIN_S:
        code, out, err = run(*named, "--wait", "--timeout", f"{timeout_s}")
        assert (code != 0, out) == (True, "")
        if "was not read in time" not in err:
            break
    assert "1000" in err, "it says which offset it waited for"
    fleet.claim("shop", "orders", 0)  # the memory worker is at offset 1,000 then
    code, out, _ = run(*named, "--wait")
    assert code == 0
    assert "worker-7" in out


def test_claims_are_listed_in_the_columns_of_kafka_consumer_groups(
    fleet: Fleet, run: Run, broker: SessionBroker, fresh_topic: FreshTopic
) -> None:
    topic = fresh_topic("orders", partitions=2)
    producer = Producer(broker.client_config())
    for _ in range(50):
        producer.produce(topic, value=b"x", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    fleet.claim("shop", topic, 0, age_s=3)
    fleet.claim("shop", topic, 1, age_s=90, current_offset=None)
    fleet.claim("other", "no-such-topic", 9, heartbeat_at_s=None, released_at_s=5)
    code, out, _ = run("list")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0
    assert lines[0] == [
        *(
            "GROUP",
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
            "CONSUMER-ID",
            "CLIENT-ID",
        ),
        *("STATUS", "OWNER-INSTANCE", "HEARTBEAT-AGE"),
    ]
    assert lines[1] == ["other", "no-such-topic", "9", "40", "-", "-", "-", "-", "released", "-", "-"]
    assert lines[2][:10] == [
        "shop",
        topic,
        "0",
        "40",
        "50",
        "10",
        "worker-7-3c5a0f1e",
        "worker-7",
        "fresh",
        "3c5a0f1e",
    ]
    assert 3 <= int(lines[2][10].removesuffix("s")) < 60
    assert lines[3][:10] == [
        "shop",
        topic,
        "1",
        "-",
        "0",
        "-",
        "worker-7-3c5a0f1e",
        "worker-7",
        "unknown",
        "3c5a0f1e",
    ]


def test_the_json_form_keeps_its_names_and_says_how_far_each_answer_is_true(fleet: Fleet, run: Run) -> None:
    fleet.claim("shop", "orders", 0, age_s=500)
    fleet.pause("idle", 1, for_s=600)
    code, out, _ = run("list", "-o", "json")
    idle, claim = sorted(json.loads(out), key=lambda record: str(record["group"]))
    assert code == 0
    assert list(claim) == list(idle) == list(command.FIELDS)
    assert (claim["status"], claim["owner_epoch"], claim["as_of_offset"], claim["role"]) == (
        "stale",
        2,
        1_000,
        "active",
    )
    assert claim["coordination_partition"] == coordination_partition("orders", PARTITIONS)
    assert (idle["status"], idle["topic"], idle["paused_until_s"]) == ("paused", None, fleet.now_s + 600)


def test_a_group_or_a_topic_can_be_picked(fleet: Fleet, run: Run) -> None:
    for group in ("a", "ab"):
        for topic in ("orders", "orders2"):
            fleet.claim(group, topic, 0)

    def picked(*arguments: str) -> list[tuple[str, str]]:
        _, out, _ = run("list", "-o", "json", *arguments)
        return [(record["group"], record["topic"]) for record in json.loads(out)]

    assert picked("--group", "a") == [("a", "orders"), ("a", "orders2")]
    assert picked("--topic", "orders") == [("a", "orders"), ("ab", "orders")]
    assert picked("--group", "ab", "--topic", "orders2") == [("ab", "orders2")]
    code, _, err = run("list", "--group", "nobody")
    assert (code, "no client has ever claimed" in err) == (0, True)


def test_a_paused_group_is_shown_as_paused_until_its_time(fleet: Fleet, run: Run) -> None:
    fleet.claim("shop", "orders", 0)
    fleet.claim("free", "orders", 0)
    fleet.pause("shop", 0, for_s=-10)
    fleet.pause("free", 0, for_s=-10)
    assert "PAUSED-UNTIL" not in run("list")[1]
    fleet.pause("shop", 2, for_s=600)
    fleet.pause("shop", 3, for_s=600)
    for arguments in (["list"], ["list", "--group", "shop"]):
        _, out, _ = run(*arguments)
        rows = {line.split()[0]: line.split()[-1] for line in out.splitlines()}
        assert rows["GROUP"] == "PAUSED-UNTIL"
        assert rows["shop"].endswith("Z")
        assert rows.get("free", "-") == "-"


def test_one_claim_is_shown_with_all_that_is_known(fleet: Fleet, run: Run) -> None:
    anomaly = Anomaly(3, AnomalyKind.FOREIGN_HEARTBEAT, 77, "intruder", "2")
    fleet.claim(
        "shop", "orders", 3, age_s=10, proposed_offset=60, frame_time_s=fleet.now_s - 3, anomaly=anomaly
    )
    fleet.pause("shop", coordination_partition("orders", PARTITIONS), for_s=600)
    code, out, _ = run("show", "shop", "orders", "3", "-o", "json")
    shown = json.loads(out)
    assert code == 0
    assert (
        shown["owner_epoch"],
        shown["fenced_instances"],
        shown["proposed_offset"],
        shown["clock_skew_s"],
    ) == (2, ["0badcafe"], 60, 7)
    assert shown["last_anomaly"] == {
        "kind": "foreign-heartbeat",
        "at_s": 77,
        "client_id": "intruder",
        "instance_id": "2",
    }
    assert shown["paused_until_s"] == fleet.now_s + 600
    code, out, _ = run("show", "shop", "orders", "3")
    assert code == 0
    assert "kind=foreign-heartbeat" in out
    assert "0badcafe" in out


def test_a_claim_that_was_never_held_is_reported_as_that(run: Run) -> None:
    code, out, err = run("show", "shop", "orders", "3")
    assert (code, out) == (1, "")
    assert "no client has ever claimed orders/3 for shop" in err
    code, _, err = run("show", "sh/op", "orders", "3")
    assert (code, "'/'" in err) == (2, True)


def test_watching_prints_changes_and_not_each_heartbeat(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: Iterator[Callable[[], None]] = iter(
        [
            lambda: fleet.claim("shop", "orders", 0, age_s=1, current_offset=41),  # a heartbeat: no news
            lambda: fleet.claim("shop", "orders", 0, client_id="worker-8", instance_id="9", epoch=3),
            lambda: fleet.claim(
                "shop",
                "orders",
                0,
                client_id="worker-8",
                instance_id="9",
                epoch=3,
                heartbeat_at_s=None,
                released_at_s=9,
            ),
        ]
    )
    fleet.claim("shop", "orders", 0)
    monkeypatch.setattr("holdfast.cli.groups.claims.sleep", lambda seconds: next(steps)())
    code, out, _ = run("watch", "--count", "4")
    told = [line.split(" ", 1)[1] for line in out.splitlines()]
    assert code == 0
    assert told == [
        "shop orders 0 fresh worker-7-3c5a0f1e",
        "shop orders 0 fresh worker-8-9 (was fresh, worker-7-3c5a0f1e)",
        "shop orders 0 released - (was fresh, worker-8-9)",
    ]


def test_watching_outlives_workers_that_restart(
    fleet: Fleet, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, looks = command._ClaimViews, iter(range(10))
    found = views.claims

    def asked(view: Any, *given: Any) -> Any:
        if next(looks) == 1:
            raise NotReadyError("no worker claims it")
        return found(view, *given)

    fleet.claim("shop", "orders", 0)
    monkeypatch.setattr(views, "claims", asked)
    code, out, err = run("watch", "--count", "3", "--interval", "0.1")
    assert (code, len(out.splitlines())) == (0, 1)
    assert [line.split("  ", 1)[1] for line in err.splitlines()] == [
        "not read: no worker claims it",
        "read again",
    ]


def test_watching_as_json_gives_one_line_a_change(fleet: Fleet, run: Run) -> None:
    fleet.claim("shop", "orders", 0)
    _, out, _ = run("watch", "--count", "2", "--interval", "0.1", "-o", "json")
    (line,) = out.splitlines()
    assert json.loads(line)["client_id"] == "worker-7"


def test_workers_that_cannot_answer_are_reported_with_the_cause(fleet: Fleet, run: Run) -> None:
    fleet.worker.cause = "restoring claims/2: 5 of 90"
    for replica in fleet.worker.replicas.values():
        replica.serving = False
    for timeout_s in VAIN_S:
        code, _, err = run("list", "--timeout", f"{timeout_s}")
        assert (code, len(err.splitlines())) == (1, 1)
        if told := "restoring claims/2: 5 of 90" in err:
            break
    assert told, err
    code, _, err = run("list", "--stale-ok", "soon")
    assert (code, "--stale-ok" in err) == (2, True)
