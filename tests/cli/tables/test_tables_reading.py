"""`holdfast tables list | get | scan | windows | watch`: found by the workers topic of a real broker, asked
over HTTP.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from holdfast import Bytes, Processor, Rows, Settings, Source, by_key
from holdfast.cli.__main__ import main
from holdfast.cli.tables import reading
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.core.engine.query_wire import encode_json
from holdfast.core.streams.windowing.rows import WindowRow
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.errors import AccessError, HoldfastError, NotReadyError
from holdfast.streams import Filter, Tumbling, Windowed, window_key
from tests.clients.tables.test_globals import ORDERS, with_rates
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S, VAIN_S

PARTITIONS = 3
Run = Callable[..., tuple[int, str, str]]


class Total(msgspec.Struct, frozen=True):
    count: int = 0
    mark: bytes = b""


def fold(rows: Rows[Total], event: bytes, at_ms: int) -> None: ...


TOTALS = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=Total, route=by_key)
processors = [TOTALS]
MINUTES: Windowed[str, int] = Windowed(
    name="minutes",
    source="orders",
    decode=bytes.decode,
    by=str,
    window=Tumbling("1m"),
    fold=lambda seen, event: (seen or 0) + 1,
    row=int,
)
MINUTE_MS, AT_MS = 60_000, 1_700_000_040_000


@pytest.fixture
def settings(broker: SessionBroker) -> Settings:
    return Settings(
        app=f"tables-{ending()}",
        web_port=free_ports(1)[0],
        kafka={"bootstrap.servers": broker.bootstrap},
        web_token="t",
    )


@pytest.fixture
def worker(broker: SessionBroker, settings: Settings) -> Iterator[MemoryWorker]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def done(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(DEADLINE_S)

    async def opened() -> MemoryWorker:
        return await MemoryWorker(settings, processors, partitions=PARTITIONS).__aenter__()

    found: MemoryWorker = done(opened())
    broker.create_topic(settings.workers_topic, config={"cleanup.policy": "compact"}, exact=True)
    try:
        yield found
    finally:
        done(found.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
        loop.close()
        broker.delete_topics([settings.workers_topic])


@pytest.fixture
def announced(broker: SessionBroker, settings: Settings, worker: MemoryWorker) -> MemoryWorker:
    producer = Producer(broker.client_config())
    producer.produce(settings.workers_topic, key=worker.url, value=encode_json(worker.claims()))
    assert producer.flush(DEADLINE_S) == 0
    for key, count in (("ada", 1), ("alan", 2), ("bob", 3)):
        worker.put(TOTALS, by_key(key, PARTITIONS), key, Total(count, b"\xff"), offset=40)
    return worker


@pytest.fixture
def run(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "shop", sys.modules[__name__])

    def command(*arguments: str) -> tuple[int, str, str]:
        given = [
            "--set",
            f"app={settings.app}",
            "--set",
            "web_token=t",
            "--bootstrap",
            settings.bootstrap_servers,
        ]
        patience = ("--timeout", str(DEADLINE_S))
        with pytest.raises(SystemExit) as ended:
            main([*given, "-A", "shop:processors", "tables", arguments[0], *patience, *arguments[1:]])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return command


def test_each_partition_is_listed_with_the_worker_that_serves_it(announced: MemoryWorker, run: Run) -> None:
    code, out, said = run("list", "--output", "json")
    assert (code, said) == (0, "")
    assert json.loads(out) == [
        {
            "table": "totals",
            "version": 1,
            "partition": each,
            "owner": announced.url,
            "standbys": [],
            "partial": False,
            "stage": None,
        }
        for each in range(PARTITIONS)
    ]


def test_building_and_waiting_partitions_of_a_next_version_are_distinguished(
    broker: SessionBroker, settings: Settings, announced: MemoryWorker, run: Run
) -> None:
    announced.built = {("totals", 0): "it is built", ("totals", 1): "it waits"}
    announced.waits = {("totals", 1)}
    producer = Producer(broker.client_config())
    producer.produce(settings.workers_topic, key=announced.url, value=encode_json(announced.claims(2)))
    assert producer.flush(DEADLINE_S) == 0
    code, out, said = run("list", "--output", "json")
    assert code == 0
    stages = [each["stage"] for each in json.loads(out)]
    assert stages == ["building", "waiting", *[None] * (PARTITIONS - 2)]
    assert "1 partitions are being built" in said
    assert "1 partitions have folded all there is, and wait" in said


def test_named_tables_are_listed_and_steps_without_a_table_are_not(
    announced: MemoryWorker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = Processor(
        name="totals", source="orders", decode=bytes, fold=fold, row=Total, tables={"open": Total}
    )
    step = Filter(name="paid", source=Source("orders", Bytes()), keep=bool)
    monkeypatch.setattr(sys.modules[__name__], "processors", [totals, step])
    code, out, said = run("list", "--output", "json")
    assert (code, said) == (0, "")
    assert [each["table"] for each in json.loads(out)] == ["totals"] * PARTITIONS + [
        "totals.open"
    ] * PARTITIONS


def test_a_table_without_a_serving_worker_is_reported(worker: MemoryWorker, run: Run) -> None:
    code, out, said = run("list")
    assert (code, out.split()) == (
        0,
        ["TABLE", "VERSION", "PARTITION", "OWNER", "STANDBYS", "PARTIAL", "STAGE"],
    )
    assert "no worker has announced totals version 1" in said


def test_a_row_comes_with_the_offset_it_reflects(announced: MemoryWorker, run: Run) -> None:
    code, out, _ = run("get", "totals", "ada")
    assert code == 0
    assert out.splitlines()[1].split() == [
        "ada",
        str(by_key("ada", PARTITIONS)),
        "40",
        "active",
        '{"count":1,"mark":"/w=="}',
    ]
    code, out, _ = run("get", "totals", "ada", "--output", "json")
    assert json.loads(out)[0]["value"] == {"count": 1, "mark": "/w=="}


def test_a_row_that_is_not_there_is_exit_code_1(announced: MemoryWorker, run: Run) -> None:
    code, out, said = run("get", "totals", "eve")
    assert (code, out) == (1, "")
    assert f"totals has no row 'eve' (as of {by_key('eve', PARTITIONS)}:" in said


def test_rows_come_in_the_order_of_their_keys_and_no_more_than_asked_for(
    announced: MemoryWorker, run: Run
) -> None:
    code, out, said = run("scan", "totals", "--output", "json")
    assert (code, said) == (0, "")
    assert sorted(each["key"] for each in json.loads(out)) == ["ada", "alan", "bob"]
    code, out, _ = run("scan", "totals", "al", "--output", "json")
    assert [each["key"] for each in json.loads(out)] == ["alan"]
    code, out, said = run("scan", "totals", "--limit", "2")
    assert (code, len(out.splitlines())) == (0, 3)
    assert "there are more than 2 rows" in said


@pytest.fixture
def with_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "processors", [TOTALS, MINUTES])


def put_windows(worker: MemoryWorker) -> None:
    for key, value in (("ada", 1), ("bob", 2)):
        for number in range(3):
            start_ms = AT_MS + number * MINUTE_MS
            row = WindowRow(value + number, start_ms + MINUTE_MS)
            worker.put(MINUTES, by_key(key, PARTITIONS), window_key(key, start_ms), row, offset=40)


def test_windows_come_by_key_or_by_time(with_windows: None, announced: MemoryWorker, run: Run) -> None:
    put_windows(announced)
    code, out, said = run("windows", "minutes", "ada")
    assert (code, said) == (0, "")
    assert [line.split() for line in out.splitlines()][:2] == [
        ["KEY", "START", "END", "PARTITION", "AS-OF-OFFSET", "ROLE", "VALUE"],
        [
            "ada",
            "2023-11-14T22:14:00.000Z",
            "2023-11-14T22:15:00.000Z",
            str(by_key("ada", PARTITIONS)),
            "40",
            "active",
            "1",
        ],
    ]
    second = ("--since", "2023-11-14T22:15:00Z", "--until", str(AT_MS + 2 * MINUTE_MS))
    code, out, _ = run("windows", "minutes", *second, "--output", "json")
    found = sorted(json.loads(out), key=lambda each: str(each["key"]))
    assert found == [
        {
            "key": key,
            "partition": by_key(key, PARTITIONS),
            "as_of_offset": 40,
            "reached": [f"{by_key(key, PARTITIONS)}:40"],
            "role": "active",
            "value": value,
            "start_ms": AT_MS + MINUTE_MS,
            "end_ms": AT_MS + 2 * MINUTE_MS,
        }
        for key, value in (("ada", 2), ("bob", 3))
    ]
    code, out, said = run("windows", "minutes", "--limit", "4")
    assert (code, len(out.splitlines())) == (0, 5)
    assert "there are more than 4 windows" in said


def test_a_table_without_windows_is_one_line(with_windows: None, announced: MemoryWorker, run: Run) -> None:
    code, out, said = run("windows", "totals")
    assert (code, out) == (1, "")
    assert "table totals has no windows" in said


@pytest.fixture
def with_a_global(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "processors", [TOTALS, ORDERS])


def test_a_global_is_read_from_a_workers_copy(
    with_a_global: None, announced: MemoryWorker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rates(announced).globals["rates"].topic_ids = {"rates": "a+rate/id"}
    code, out, said = run("get", "rates", "usd")
    assert (code, said) == (0, "")
    assert out.splitlines()[1].split() == ["usd", "-", "0:20,1:30,2:-1", "copy", "0.9"]
    code, out, _ = run("scan", "rates", "u", "--output", "json")
    assert json.loads(out) == [
        {
            "key": key,
            "partition": None,
            "as_of_offset": 51,
            "positions": {"0": 20, "1": 30, "2": -1},
            "reached": ["0:20@a+rate/id", "1:30@a+rate/id"],
            "role": "copy",
            "value": rate,
        }
        for key, rate in (("usd", 0.9), ("usdt", 0.8))
    ]
    code, out, said = run("get", "rates", "eur")
    assert (code, out) == (1, "")
    assert "rates has no row 'eur' (as of 0:20, 1:30, 2:-1)" in said
    assert run("get", "rates", "usd", "--at-least", "0:20@a+rate/id", "--at-least", "1:30")[0] == 0
    assert "topic was deleted and made again" in run("get", "rates", "usd", "--at-least", "0:20@another")[2]
    assert run("get", "rates", "usd", "--partition", "0")[0] == 1
    assert "no processor rates" in run("windows", "rates")[2]
    assert "no processor rate" in run("get", "rate", "usd")[2]


def test_an_offset_can_be_waited_for(announced: MemoryWorker, run: Run) -> None:
    at = by_key("ada", PARTITIONS)
    assert run("get", "totals", "ada", "--at-least", f"{at}:40")[0] == 0
    for timeout_s in VAIN_S:
        code, _, said = run("get", "totals", "ada", "--at-least", f"{at}:41", "--timeout", f"{timeout_s}")
        assert code == 1
        if "41" in said:
            break
    assert "41" in said


def test_an_offset_is_of_the_topic_with_its_id(announced: MemoryWorker, run: Run) -> None:
    for replica in announced.replicas.values():
        replica.topic_ids = {topic: f"id+of/{topic}" for topic in replica.processor.topics}
    (found,) = json.loads(run("get", "totals", "ada", "--output", "json")[1])
    at, topic = by_key("ada", PARTITIONS), TOTALS.topics[0]
    assert found["reached"] == [f"{at}:40@id+of/{topic}"]
    for written in (*found["reached"], f"{at}:{topic}:40@id+of/{topic}"):
        assert run("get", "totals", "ada", "--at-least", written)[0] == 0
    for verb in (("get", "totals", "ada"), ("scan", "totals", "--partition", str(at))):
        code, out, said = run(*verb, "--at-least", f"{at}:40@another")
        assert (code, out) == (1, "")
        assert f"topic {topic} with id another" in said


def test_a_row_is_watched_until_it_is_enough(
    announced: MemoryWorker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, looked = by_key("ada", PARTITIONS), []

    def pause(seconds: float) -> None:
        looked.append(seconds)
        if len(looked) == 2:
            announced.put(TOTALS, at, "ada", Total(9), offset=41)
        if len(looked) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(reading, "sleep", pause)
    code, out, _ = run("watch", "totals", "ada", "--every", "0.2")
    assert code == 130
    assert out.splitlines() == [f'{at}:40  {{"count":1,"mark":"/w=="}}', f'{at}:41  {{"count":9,"mark":""}}']
    assert looked == [0.2] * 4


def test_a_watch_outlives_a_rebalance_and_prints_it_once(
    announced: MemoryWorker, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, looked = by_key("ada", PARTITIONS), list[float]()
    get: Callable[..., Any] = BlockingTableClient.get
    errors: dict[int, HoldfastError] = dict.fromkeys((1, 2), NotReadyError("nobody claims it"))

    def pause(seconds: float) -> None:
        looked.append(seconds)

    def asked(client: BlockingTableClient, *given: Any, **named: Any) -> Any:
        if (error := errors.get(len(looked))) is not None:
            raise error
        return get(client, *given, **named)

    monkeypatch.setattr(reading, "sleep", pause)
    monkeypatch.setattr(BlockingTableClient, "get", asked)
    errors[4] = AccessError("no such token")
    code, out, err = run("watch", "totals", "ada")
    assert (code, len(out.splitlines())) == (1, 1)
    assert out.startswith(f"{at}:40  ")
    first, again, last = err.splitlines()
    assert first.endswith("  not read: nobody claims it")
    assert again.endswith("  read again")
    assert last == "holdfast: no such token"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("get", "total", "ada"), "no processor total"),
        (("get", "totals", "ada", "--at-least", "1"), "--at-least 1: write PARTITION:OFFSET"),
        (("get", "totals", "ada", "--at-least", "0:7@a b"), "add @ID for the topic's id"),
        (
            ("scan", "totals", "--at-least", "0:7@a", "--at-least", "1:7@b"),
            "another one has the id a; offsets are of one topic",
        ),
        (("get", "totals", "ada", "--stale-ok", "soon"), "--stale-ok"),
        (("windows", "total"), "no processor total"),
        (("windows", "totals", "--since", "soon"), "--since: 'soon' is not a valid time"),
        (("windows", "totals", "--since", "2", "--until", "2"), "--since 2, --until 2: since_ms is 2"),
        (("windows", "totals", "--since", "9" * 17), "write a whole number of ms since 1970"),
        (("windows", "totals", "--since", "9" * 30), "is not a valid time"),
    ],
)
def test_what_makes_no_sense_is_one_line(run: Run, arguments: tuple[str, ...], told: str) -> None:
    code, out, said = run(*arguments)
    assert (code, out) == (2, "")
    assert told in said
