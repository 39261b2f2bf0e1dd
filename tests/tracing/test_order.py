"""One order's way from its insert into an outbox to what a fold emits of it, its reader and a query, as one
trace.

The programs are those of docs/tracing.md. The worker sends its spans as any does, by the standard variables;
the two services are run in this process, whose exporter keeps them.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Settings
from holdfast.dev.ports import free_ports
from holdfast.dev.waits import wait_until
from holdfast.embedded.kafka import EmbeddedKafka
from tests.cli.worker.test_worker import command, serving
from tests.support.patience import DEADLINE_S
from tests.support.places import example_file
from tests.tracing.collector import TraceCollector

pytestmark = pytest.mark.process

PROGRAMS = ("traced_bills", "traced_shop", "traced_mail")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Give the programs of the page as modules, which lie in the folder of the test."""
    for name in PROGRAMS:
        shutil.copy(example_file(f"{name}.py"), tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield {name: import_module(name) for name in PROGRAMS}
    for name in PROGRAMS:
        del sys.modules[name]


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def test_an_order_is_one_trace_from_insert_to_emit_and_query(
    tmp_path: Path, programs: dict[str, Any], exported: InMemorySpanExporter
) -> None:
    port, database = free_ports(1)[0], tmp_path / "shop.db"
    with EmbeddedKafka() as kafka, TraceCollector() as collector:
        for topic in ("orders", "bills", "__marshal"):
            kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
        where = {
            "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "HOLDFAST_APP": "billing",
            "HOLDFAST_OUTBOX_DATABASE": f"sqlite:///{database}",
            "HOLDFAST_OUTBOX_HARVEST": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
        }
        for arguments in (["outbox", "init"], ["-A", "traced_bills", "topics", "create"]):
            with command(tmp_path, *arguments, **where) as made:
                assert made.wait(DEADLINE_S) == 0, (tmp_path / "printed").read_text()
        with command(tmp_path, "-A", "traced_bills", "worker", "--port", str(port), **where) as worker:
            wait_until("the worker serves", lambda: serving(port), DEADLINE_S)
            with closing(sqlite3.connect(database)) as connection:
                programs["traced_shop"].take_order(connection, "order-7")
            settings = Settings(app="billing", kafka={"bootstrap.servers": kafka.bootstrap})
            mailed = programs["traced_mail"].mail_one(settings)
            assert asyncio.run(asyncio.wait_for(mailed, DEADLINE_S)) == "order-7: bill 1"
            for name in ("send billing-outbox", "process bills", "get_many bills"):
                wait_until(name, lambda name=name: collector.named(name), DEADLINE_S)  # type: ignore[misc]
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(DEADLINE_S) == 0, (tmp_path / "printed").read_text()
    here = {span.name: span for span in exported.get_finished_spans()}
    order, created = ids(here["take order"]), ids(here["create outbox"])
    handled, asking = ids(here["process bills"]), ids(here["get bills"])
    assert {created[0], handled[0], asking[0]} == {order[0]}, "one trace"
    (sent,), (folded,) = collector.named("send billing-outbox"), collector.named("process bills")
    asked = collector.named("get_many bills")[-1]
    assert {sent.service, folded.service, asked.service} == {"billing"}
    parents = {
        "create outbox": (here["create outbox"].parent, order[1]),
        "process bills": (here["process bills"].parent, created[1]),
        "get bills": (here["get bills"].parent, handled[1]),
    }
    for name, (found, wanted) in parents.items():
        assert found is not None, name
        assert f"{found.span_id:016x}" == wanted, name
    assert (sent.trace, sent.parent, sent.links) == (order[0], created[1], (created,))
    assert (folded.trace, folded.parent, folded.links) == (order[0], created[1], (created,))
    assert (asked.trace, asked.parent) == (order[0], asking[1])
    assert folded.attributes["messaging.destination.name"] == "orders"
    assert (folded.attributes["messaging.batch.message_count"], folded.attributes["holdfast.emitted"]) == (
        1,
        1,
    )
