"""holdfast continues traces, and begins none: the spans that are made, their links, and the headers sent
on.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import Emit, OutboxWriter, Processor, SequencedProducer, Settings, traced
from holdfast.agents.partitions.batches.traced_batches import TracedBatches
from holdfast.clients.claims.messages import ClaimedBatch
from holdfast.clock import ManualClock
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.emits import Headers
from holdfast.core.engine.fold.folding import Changes
from holdfast.core.engine.fold.stepping import Refused
from holdfast.core.engine.positions import Position
from holdfast.core.engine.trace_context import TRACE_LIMITS, is_readable, trace_of
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import OutboxRecordError
from holdfast.outbox.harvest.publishing.traced_rows import tell_published
from holdfast.outbox.schema.layouts import OutboxRow
from holdfast.outbox.schema.migrate import upgrade
from holdfast.outbox.writer.records import OutboxRecord, prepared
from holdfast.tracing.spans import LIMIT_LINKS, MetTraces, handling, outgoing, record_headers, sending
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

pytestmark = pytest.mark.usefixtures("exported")


def parent(at: int, flags: str = "01") -> bytes:
    return f"00-{at:032x}-{at:016x}-{flags}".encode()


def carrying(at: int, flags: str = "01") -> Headers:
    return (("traceparent", parent(at, flags)),)


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.trace_id for link in span.links]


# -- incoming traces


def test_what_all_belongs_to_one_trace_is_a_part_of_it(exported: InMemorySpanExporter) -> None:
    with handling("work", "CONSUMER", [carrying(7), carrying(7), ()]):
        pass
    (span,) = exported.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert (span.context.trace_id, span.parent.span_id) == (7, 7)
    assert linked(span) == [7]


def test_what_belongs_to_several_is_a_trace_with_links(exported: InMemorySpanExporter) -> None:
    with (
        trace.get_tracer("t").start_as_current_span("around"),
        handling("work", "CONSUMER", [carrying(7), carrying(8)]),
    ):
        pass
    span = exported.get_finished_spans()[0]
    assert span.name == "work"
    assert span.parent is None, "it is not part of what happens to be under way"
    assert linked(span) == [7, 8]


@pytest.mark.parametrize(
    "carriers",
    [
        [],
        [()],
        [carrying(7, "00")],
        [(("traceparent", b"00-1-1-01"),)],
        [(("traceparent", None),)],
        [(("traceparent", b"\xff" * 55),)],
        [(("traceparent", b"00-" + b"z" * 49 + b"-01"),)],
        [(("tracestate", b"a=1"),)],
    ],
    ids=repr,
)
def test_without_a_sampled_trace_there_is_no_span(carriers: Any, exported: InMemorySpanExporter) -> None:
    with handling("work", "CONSUMER", carriers):
        assert outgoing() == {}
    assert exported.get_finished_spans() == ()


HOSTILE = (
    ("tracestate", b"a=1," * 225_000),
    ("tracestate", b"a=" + b"x" * 900_000),
    ("tracestate", b"a=1" + b" \t" * 100_000 + b"!"),
    ("tracestate", b"\xff\xfe=1"),
    ("tracestate", b"a=\x00"),
    ("tracestate", b",".join(b"k%d=1" % at for at in range(40))),
    ("baggage", b"a=1," * 225_000),
    ("baggage", b"a=" + b"%41" * 300_000),
    ("baggage", b",".join(b"k%d=v" % at for at in range(100_000))),
    ("baggage", b"a\x00=b\r\nWARNING all is lost"),
    ("baggage", b"a=%ff%00%0a"),
    ("baggage", b"user"),
)


@pytest.mark.parametrize("header", HOSTILE, ids=lambda header: f"{header[0]} {header[1][:20]!r}")
def test_what_a_stranger_writes_in_headers_is_neither_carried_on_nor_logged(
    header: tuple[str, bytes], exported: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenTelemetry quotes in its warnings, in full, what it cannot read."""
    with handling("work", "CONSUMER", [(*carrying(7), header)]):
        assert header[1].decode(errors="replace") not in outgoing().values()
    assert linked(exported.get_finished_spans()[0]) == [7]
    assert caplog.records == []


@pytest.mark.long
def test_no_bytes_in_headers_make_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    draws = Random(7)
    for _ in range(2_000):
        pieces = draws.choices(
            [b"a", b"k1", b"=", b",", b";", b" ", b"%41", b"%ff", b"@", b"\n", b"\x80", b'"', b"\\", b"/"],
            k=9,
        )
        with handling(
            "work", "CONSUMER", [(*carrying(7), (draws.choice(["tracestate", "baggage"]), b"".join(pieces)))]
        ):
            outgoing()
    assert caplog.records == []


def test_a_span_has_a_limit_of_links(exported: InMemorySpanExporter) -> None:
    with handling("work", "CONSUMER", (carrying(at) for at in range(1, 10 * LIMIT_LINKS))):
        pass
    assert linked(exported.get_finished_spans()[0]) == [*range(1, LIMIT_LINKS + 1)]


def test_names_of_http_headers_have_no_case_and_baggage_continues() -> None:
    with handling("work", "SERVER", [[("Traceparent", parent(7).decode()), ("Baggage", "who=ada")]]):
        assert baggage.get_baggage("who") == "ada"
        assert outgoing()["baggage"] == "who=ada"
        assert outgoing()["traceparent"].split("-")[1] == f"{7:032x}"


# -- outgoing headers


def test_outside_of_a_trace_nothing_is_sent_on(exported: InMemorySpanExporter) -> None:
    with sending("send", "PRODUCER"):
        assert outgoing() == {}
        token = context.attach(baggage.set_baggage("who", "ada"))
        assert record_headers((), 0) == ()
        context.detach(token)
    assert exported.get_finished_spans() == ()


def test_a_record_that_has_a_trace_keeps_it() -> None:
    with handling("work", "SERVER", [carrying(7)]):
        assert dict(record_headers((("who", b"ada"),), 3))["traceparent"].startswith(parent(7)[:35])
        assert record_headers(carrying(8), 0) == ()


@pytest.mark.parametrize(
    ("limit_bytes", "value_bytes", "is_traced"),
    [(1_000_000, 899_000, True), (1_000_000, 999_900, False), (10_000, 9_900, False)],
)
def test_no_row_is_refused_for_its_trace(limit_bytes: int, value_bytes: int, is_traced: bool) -> None:
    record = OutboxRecord(topic="orders", value=bytes(value_bytes))
    with handling("request", "SERVER", [carrying(7)]):
        made = prepared(record, key_encoder=None, value_encoder=None, limit_bytes=limit_bytes)
    assert bool(made.headers) is is_traced


def test_what_a_record_says_twice_counts_as_it_was_said_first(exported: InMemorySpanExporter) -> None:
    twice = (*carrying(7), *carrying(8), *carrying(9, "00"))
    assert trace_of(twice) == carrying(7)
    with handling("work", "CONSUMER", [twice]):
        pass
    assert linked(exported.get_finished_spans()[0]) == [7]


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({}, f"{7:032x}"),
        ({"trace": ""}, None),
        ({"trace": parent(9).decode()}, f"{9:032x}"),
        ({"headers": {"traceparent": parent(8)}}, f"{8:032x}"),
        ({"headers": {"who": "ada"}}, f"{7:032x}"),
    ],
    ids=repr,
)
def test_a_row_of_an_outbox_carries_the_trace_it_is_written_in(
    more: dict[str, Any], found: str | None, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'service.db'}"
    upgrade(url)
    with closing(sqlite3.connect(tmp_path / "service.db")) as connection, connection:
        with handling("request", "SERVER", [carrying(7)]):
            OutboxWriter().write(connection, "orders", key="k", value="v", **more)
        ((stored,),) = connection.execute("SELECT headers FROM outbox").fetchall()
    told = str(stored)
    assert (found in told) if found else "traceparent" not in told


def test_a_wrong_trace_is_refused_as_before() -> None:
    with pytest.raises(OutboxRecordError, match="is not a W3C traceparent"):
        OutboxWriter().write(None, "orders", trace="00-1-1-01")
    with pytest.raises(OutboxRecordError, match="cannot be written as UTF-8"):
        OutboxWriter().write(None, "orders", trace="\udcff")


def test_a_sequenced_producer_sends_the_trace_it_is_called_in(exported: InMemorySpanExporter) -> None:
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders")
        producer = SequencedProducer(Settings(kafka={"bootstrap.servers": kafka.bootstrap}), "shop")
        producer._names, producer.epoch = cast(Any, SimpleNamespace(name="shop", check=lambda: None)), 0
        with handling("request", "SERVER", [carrying(7)]):
            traced_one = producer.send("orders", b"1")
            producer.flush()
            large = producer.send("orders", bytes(999_000))
            producer.flush()
        plain = producer.send("orders", b"2")
        producer.flush()
    assert dict(traced_one.headers)["traceparent"].startswith(parent(7)[:35])  # type: ignore[union-attr]
    assert "traceparent" not in dict(large.headers), "it has no room for it"
    assert "traceparent" not in dict(plain.headers)
    assert [span.name for span in exported.get_finished_spans()] == ["send shop", "send shop", "request"]


# -- transactions of a worker


def fold(rows: Any, event: Any, at_ms: int) -> list[Emit]:
    return []


ONE: Processor[Any, int] = traced(
    Processor(name="one", source="in", decode=bytes.decode, fold=fold, row=int, emits=("out",))
)
PLAIN: Processor[Any, int] = Processor(
    name="one", source="in", decode=bytes.decode, fold=fold, row=int, emits=("out",)
)


def watching(processor: Processor[Any, Any]) -> tuple[TracedBatches, ManualClock]:
    clock = ManualClock(now_ms=1_000)
    return TracedBatches(cast(Any, SimpleNamespace(processor=processor, partition=3)), clock), clock


def changes(applied: int, refused: int = 0) -> Changes:
    some = [Refused(offset=0, stage="fold", error="E", reason="r")] * refused
    return Changes(marker=Position((applied,), 0, 1), records=2, refused=some, emits=[Emit("out")])


def test_a_transaction_is_one_span_with_links_to_those_of_its_records(exported: InMemorySpanExporter) -> None:
    traced_batches, clock = watching(ONE)
    batch = Batch([4, 5, 6], [1, 1, 1], ([b"a"] * 3, [carrying(1), (), carrying(2)]))
    later = Batch([7], [1], ([b"a"], [carrying(3)]))
    given = traced_batches.watched(iter([batch, later]))
    assert [*given] == [batch, later]
    clock.advance_ms(250)
    traced_batches.committed(changes(applied=6, refused=1))
    (span,) = exported.get_finished_spans()
    assert linked(span) == [1, 2], "the record at 7 is left to the next transaction"
    assert (span.start_time, span.end_time) == (1_000 * 10**6, 1_250 * 10**6)
    assert span.attributes is not None
    assert dict(span.attributes) == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": "in",
        "messaging.destination.partition.id": "3",
        "messaging.batch.message_count": 2,
        "holdfast.emitted": 1,
        "holdfast.refused": 1,
    }
    assert (span.status.is_ok, span.status.description) == (False, "1 record(s) quarantined")


def test_a_transaction_without_sampled_traces_is_no_span(exported: InMemorySpanExporter) -> None:
    for processor, columns in (
        (ONE, ([b"a"] * 2, [(), carrying(1, "00")])),
        (PLAIN, ([b"a"] * 2,)),
    ):
        traced_batches, _ = watching(processor)
        assert len([*traced_batches.watched(iter([Batch([0, 1], [1, 1], columns)]))]) == 1
        traced_batches.committed(changes(applied=1))
    assert exported.get_finished_spans() == ()


def test_a_rolled_back_batch_makes_no_span(exported: InMemorySpanExporter) -> None:
    traced_batches, _ = watching(ONE)
    for trace_id in (9, 1):
        [*traced_batches.watched(iter([Batch([0], [1], ([b"a"], [carrying(trace_id)]))]))]
    traced_batches.committed(changes(applied=0))
    traced_batches.committed(changes(applied=0))  # a commit without records
    assert [linked(span) for span in exported.get_finished_spans()] == [[1]]


def test_many_traces_are_met_up_to_a_limit() -> None:
    met = MetTraces().take(carrying(at) for at in range(1, 1_000_000_000))
    assert len(met.whence()[1]) == LIMIT_LINKS


def row(at: int, topic: str) -> OutboxRow:
    return cast(OutboxRow, SimpleNamespace(headers=list(carrying(at)), topic=topic))


def test_published_rows_are_one_span(exported: InMemorySpanExporter) -> None:
    tell_published("shop-outbox", [row(1, "orders"), row(2, "bills")], 5, 4)
    (span,) = exported.get_finished_spans()
    assert linked(span) == [1, 2]
    assert span.attributes is not None
    assert span.attributes["messaging.destination.name"] == "shop-outbox"
    assert span.start_time == span.end_time, (
        "a clock that was set back makes no span that ends before it began"
    )


class _Record:
    def __init__(self, headers: Any) -> None:
        self._headers = headers

    def headers(self) -> Any:
        return self._headers


def test_a_claimed_batch_is_one_span(exported: InMemorySpanExporter) -> None:
    records = [_Record(list(carrying(1))), _Record(None), _Record(list(carrying(2)))]
    fetched = SimpleNamespace(lease=SimpleNamespace(source="in", partition=3), messages=records)
    with ClaimedBatch(cast(Any, None), cast(Any, fetched)).span():
        assert trace.get_current_span().is_recording()
    (span,) = exported.get_finished_spans()
    assert (span.name, linked(span)) == ("process in", [1, 2])


# -- what it costs without


@pytest.mark.process
def test_without_traces_opentelemetry_is_not_imported() -> None:
    code = (
        "import sys, holdfast.clients, holdfast.agents.app, holdfast.tracing.exporting as e\nfrom"
        " holdfast.tracing.spans import handling, outgoing, sending\ne.Exporting('shop').start()\nwith"
        " handling('a', 'SERVER', [[('traceparent', '00-' + 32 * '1' + '-' + 16 * '1' + '-01')]]),"
        " sending('b', 'CLIENT'): outgoing()\nsys.exit(any(name.startswith('opentelemetry') for name in"
        " sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-P", "-c", code], cwd=ROOT, check=False, timeout=DEADLINE_S
        ).returncode
        == 0
    )


@pytest.mark.parametrize("space", [b" ", b"\t", b" \t"])
@pytest.mark.parametrize("shape", [b'a=%s"', b'a%s="', b'a=b%s"', b"a=%s;%s\x00", b'%s=%s"'])
def test_a_header_of_spaces_costs_no_more_than_its_length(shape: bytes, space: bytes) -> None:
    """A producer chooses it, and a batch has many: each of these took seconds of the event loop."""
    limit = TRACE_LIMITS["baggage"]
    value = shape.replace(b"%s", space * (limit // len(space) // 3))
    for _ in range(1_000):  # a quadratic check does not end in time
        assert not is_readable("baggage", value)
    assert is_readable("baggage", b"a = b ; c=d,\te=\t")
