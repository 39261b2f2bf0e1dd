"""`holdfast producers`, the metrics of the books and the alert rules, asked of tables in memory through a
real web port.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from holdfast.agents.books_metrics import COUNTERS, GAUGES
from holdfast.agents.services.all import processors
from holdfast.cli.__main__ import main
from holdfast.cli.logs.producers import BOOK_FIELDS
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.core.engine.query_wire import encode_json
from holdfast.core.outbox.progress import Reached, reached_key
from holdfast.core.producers.ledger import (
    TOTALS_KEY,
    Book,
    Faults,
    Hole,
    Judgement,
    LedgerTrouble,
    Totals,
    book_key,
)
from holdfast.core.producers.registry import Registration, name_key, route
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.places import DOCS

PARTITIONS = 2
AT_MS = 1_700_000_000_000

Run = Callable[..., tuple[int, str, str]]

GOOD = Book(2, 99, 500, AT_MS, 100, 0, 3)
FAULTS = Faults(
    restarts=1,
    gaps=2,
    late=1,
    duplicates=3,
    zombies=4,
    holes=(Hole(4, 4), Hole(7, 9)),
    trouble=LedgerTrouble(Judgement.ZOMBIE, 650, AT_MS, 4, 21),
)
BAD = Book(5, 20, 700, AT_MS, 18, 0, 4, FAULTS)


def settings_of(**more: Any) -> Settings:
    declared = {"registry": True, "books": "orders", "dedupe": "raw:clean", "progress": "outbox.progress"}
    return Settings(app=f"books-{ending()}", **{**declared, **more})


@pytest.fixture
def worker(broker: SessionBroker) -> Iterator[MemoryWorker]:
    """Give a worker in a thread, announced on the workers topic of its own application."""
    settings = settings_of(web_port=free_ports(1)[0], kafka={"bootstrap.servers": broker.bootstrap})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(DEADLINE_S)

    async def opened() -> MemoryWorker:
        return await MemoryWorker(settings, processors(settings), partitions=PARTITIONS).__aenter__()

    made: MemoryWorker = wait(opened())
    broker.create_topic(settings.workers_topic, config={"cleanup.policy": "compact"}, exact=True)
    announcing = Producer(broker.client_config())
    announcing.produce(settings.workers_topic, key=made.url, value=encode_json(made.claims()))
    assert announcing.flush(DEADLINE_S) == 0
    fill(made)
    yield made
    wait(made.__aexit__(None, None, None))
    loop.call_soon_threadsafe(loop.stop)
    thread.join(DEADLINE_S)
    loop.close()
    broker.delete_topics([settings.workers_topic])


def fill(worker: MemoryWorker) -> None:
    """Put two producers into the books, one with everything that can be wrong."""
    tables = worker.tables()
    worker.put(tables["books-orders"], 0, book_key("billing"), GOOD, offset=800)
    worker.put(tables["books-orders"], 1, book_key("billing"), BAD, offset=900)
    worker.put(tables["books-orders"], 1, book_key("billing-2"), GOOD, offset=900)
    worker.put(tables["books-orders"], 0, TOTALS_KEY, Totals(producers=1, unstamped=6), offset=800)
    worker.put(tables["books-orders"], 1, TOTALS_KEY, Totals(2, 0, 1, 2, 4, 1, 3, 0, 4), offset=900)
    worker.put(tables["clean-raw"], 0, book_key("importer"), GOOD, offset=10)
    held = Registration(65_536, 5, "host-7", AT_MS, AT_MS - 5_000, "r", 1)
    worker.put(
        tables["producers"], route(name_key("billing"), PARTITIONS) or 0, name_key("billing"), held, offset=3
    )
    worker.put(
        tables["progress-outbox_progress"],
        0,
        reached_key("billing", "orders", 1),
        Reached(5, 20, 9, AT_MS),
        offset=9,
    )


@pytest.fixture
def run(
    worker: MemoryWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def command(*arguments: str) -> tuple[int, str, str]:
        told = worker.settings
        names = ("app", "books", "dedupe", "progress", "registry")
        given = [text for name in names for text in ("--set", f"{name}={getattr(told, name)!s}")]
        patience = ("--timeout", str(DEADLINE_S))
        with pytest.raises(SystemExit) as left:
            main(["producers", *arguments, *given, *patience, "--bootstrap", told.bootstrap_servers])
        captured = capsys.readouterr()
        return int(left.value.code or 0), captured.out, captured.err

    return command


def test_producers_are_listed_with_the_faults_of_each(run: Run) -> None:
    code, out, err = run("list")
    lines = [line.split() for line in out.splitlines()]
    assert code == 0, err
    assert lines[0][:6] == ["PRODUCER", "TOPIC", "PARTITION", "EPOCH", "LAST-SEQUENCE", "RECORDS"]
    assert [line[:3] for line in lines[1:]] == [
        ["billing", "orders", "0"],
        ["billing", "orders", "1"],
        ["billing-2", "orders", "1"],
        ["importer", "raw", "0"],
    ]
    assert lines[2][3:] == [
        "5",
        "20",
        "18",
        "4",
        "2",
        "1",
        "3",
        "4",
        "1",
        "2023-11-14T22:13:20Z",
        "zombie",
        "at",
        "650",
    ]
    assert "orders: 6 records without a stamp" in err
    code, out, _ = run("list", "--trouble", "--topic", "orders", "-o", "json")
    (record,) = json.loads(out)
    assert (code, tuple(record)) == (0, BOOK_FIELDS)
    assert (record["missing"], record["holes"], record["trouble"]["kind"], record["as_of_offset"]) == (
        4,
        [[4, 4], [7, 9]],
        "zombie",
        900,
    )
    assert "no producer is in trouble" in run("list", "--trouble", "--topic", "raw")[2]


def test_one_producer_is_shown_with_its_registration_its_books_and_its_outbox(run: Run) -> None:
    code, out, _ = run("show", "billing", "-o", "json")
    shown = json.loads(out)
    assert code == 0
    assert (
        shown["registration"]["epoch"],
        shown["registration"]["instance"],
        shown["registration"]["fenced"],
    ) == (5, "host-7", 1)
    assert [(each["topic"], each["partition"]) for each in shown["books"]] == [
        ("orders", 0),
        ("orders", 1),
    ], "billing-2 is another"
    assert shown["outbox"] == [
        {"topic": "orders", "partition": 1, "epoch": 5, "last_sequence": 20, "zombies": 0, "backward": 0}
    ]
    code, out, err = run("show", "billing")
    assert (code, "host-7" in out, "misses 4, 7-9" in err) == (0, True, True)
    code, _, err = run("show", "nobody")
    assert (code, "nobody has registered nobody" in err) == (1, True)


def test_a_topic_without_books_is_reported_with_those_that_have_them(run: Run) -> None:
    code, _, err = run("list", "--topic", "payments")
    assert (code, "ledgers exist for: orders, raw" in err) == (2, True), err


def test_an_application_that_keeps_no_books_is_shown_how_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["producers", "list"])
    assert left.value.code == 2
    assert "set `books`, `dedupe` or `registry`" in capsys.readouterr().err


# -- metrics and alerts


def families(worker: MemoryWorker) -> dict[str, Any]:
    page, _ = worker.metrics.exposition(worker, "")
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def in_memory(**more: Any) -> MemoryWorker:
    settings = settings_of(**more)
    return MemoryWorker(
        settings, processors(settings), partitions=PARTITIONS, clock=ManualClock(now_ms=AT_MS)
    )


def test_the_sums_of_the_books_are_metrics_by_topic_and_partition() -> None:
    worker = in_memory()
    fill(worker)
    found = families(worker)
    for name, _, attribute in (*GAUGES, *COUNTERS):
        (sample,) = [
            each
            for each in found[f"holdfast_{name}"].samples
            if each.labels == {"table": "books-orders", "topic": "orders", "partition": "1"}
            and not each.name.endswith("_created")
        ]
        assert sample.value == getattr(Totals(2, 0, 1, 2, 4, 1, 3, 0, 4), attribute), name
    names = {
        label for family in found.values() for sample in family.samples for label in sample.labels.values()
    }
    assert not names & {"billing", "billing-2", "importer"}, "no label is a producer's name"


def test_a_worker_without_books_has_no_such_metrics() -> None:
    assert not [
        name for name in families(in_memory(books="", dedupe="")) if name.startswith("holdfast_producer")
    ]


def table(page: str, name: str) -> list[list[str]]:
    found = re.search(rf"^<!-- {name} -->\n(.*?)^<!-- end -->", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return [
        [cell.strip(" `") for cell in line.strip().strip("|").split("|")]
        for line in found[1].splitlines()[2:]
    ]


def test_the_page_lists_the_metrics_of_the_books() -> None:
    told = table((DOCS / "producers.md").read_text(), "producer-metrics")
    gauges = [[f"holdfast_{name}", "gauge", text] for name, text, _ in GAUGES]
    assert told == [*gauges, *([f"holdfast_{name}_total", "counter", text] for name, text, _ in COUNTERS)]
