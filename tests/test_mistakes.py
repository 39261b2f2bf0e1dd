"""Mistakes that are typical of a first week: each ends in one line that names its cause and what to do.

The commands run in this process, against an embedded Kafka, or none. A wrong word on the command line is
answered by the usage: its last line is the cause, the one before it the cure.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import (
    BlockingClaimConsumer,
    BlockingTableClient,
    ClaimConsumer,
    Emit,
    FoldWith,
    Global,
    Internal,
    Json,
    OutboxWriter,
    Processor,
    RangeConsumer,
    SequencedProducer,
    Settings,
    Source,
    Stream,
    TableClient,
    Text,
    create_app,
    traced,
)
from holdfast.cli.__main__ import main
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import FoldError, HoldfastError
from holdfast.schemas.avro import Avro
from holdfast.streams import JoinTables, Map, Session, Tumbling, Windowed
from holdfast.testing import Topology

SHOP = """
from holdfast import Processor, by_key, create_app
def count(rows, word, at_ms):
    rows[word] = (rows.get(word) or 0) + 1
totals = Processor(name="totals", source="orders", decode=bytes.decode, fold=count, row=int, route=by_key)
app = create_app([totals])
"""
QUICK = {
    "HOLDFAST_REQUEST_TIMEOUT_S": "1",
    "HOLDFAST_SESSION_TIMEOUT_S": "1",
    "HOLDFAST_HEARTBEAT_INTERVAL_S": "0.3",
}
LEAST = 60


# -- declarations


class Mutable(msgspec.Struct):
    cents: int


def fold(rows: Any, event: Any, at_ms: int) -> None:
    rows["k"] = 1


async def waits(rows: Any, event: Any, at_ms: int) -> None: ...


def of(**more: Any) -> Processor[Any, Any]:
    declared: dict[str, Any] = {
        "name": "totals",
        "source": "orders",
        "decode": bytes.decode,
        "fold": fold,
        "row": int,
    }
    return Processor(**{**declared, **more})


def windowed(**more: Any) -> object:
    return Windowed(
        name="w", source="s", decode=bytes.decode, by=str, fold=lambda count, event: 1, row=int, **more
    )


orders: Source[int] = Source("orders", Json(int))
named: Any = "orders"
DECLARATIONS: dict[str, tuple[Callable[[], object], str, str]] = {
    # the declaration: (the mistake, its cause, its cure)
    "a list of sources": (
        lambda: of(source=["orders"]),
        r"\['orders'\] is not the name of a topic",
        "declare one for each topic, or on=",
    ),
    "no source": (lambda: of(source=""), "'' is not a valid Kafka topic name", "write source='...'"),
    "a topic with a space": (
        lambda: of(source="my orders"),
        "'my orders' is not a valid Kafka topic name",
        "use 1 to 249 letters, digits",
    ),
    "a version in quotes": (lambda: of(version="2"), "'2' is not a whole number", "write version=2"),
    "version 0": (lambda: of(version=0), "version 0", "versions start at 1"),
    "a name with a space": (lambda: of(name="my totals"), "name 'my totals'", "use 1 to 100 letters"),
    "emits as text": (lambda: of(emits="bills"), "emits 'bills'", r"write a tuple of topics: \('bills',\)"),
    "inputs as text": (lambda: of(inputs="key"), "inputs 'key'", r"write a tuple: \('key',\)"),
    "an unknown input": (lambda: of(inputs=("body",)), "body", "choose from value, key"),
    "a fold of two": (
        lambda: of(fold=lambda rows, event: None),
        r"fold takes \(rows, event\)",
        r"called with 3 arguments: \(rows, event, at_ms\)",
    ),
    "an async fold": (lambda: of(fold=waits), "fold is an async function", "write a plain function"),
    "no fold": (lambda: of(fold=None), "fold is None", r"write a function of \(rows, event, at_ms\)"),
    "no decoder": (lambda: of(decode=None), "decode is None", r"write a function of \(value\)"),
    "a row that is no type": (lambda: of(row={"a": 1}), "cannot be decoded", "write a type, such as int"),
    "a row that is a list": (lambda: of(row=list), "rows must be immutable", "make it a frozen Struct"),
    "a row that can change": (
        lambda: of(row=Mutable),
        "rows must be immutable",
        "declare Mutable with frozen=True",
    ),
    "a route of one": (
        lambda: of(route=lambda key: 1),
        r"route takes \(key\)",
        r"2 arguments: \(key, partitions\)",
    ),
    "an unknown on_error": (lambda: of(on_error="skip"), "on_error 'skip'", "write one of quarantine, stop"),
    "both source and on": (
        lambda: of(on={orders: fold}),
        "has both on= and source",
        "with on= each source has a serde",
    ),
    "on as a list": (
        lambda: Processor(name="t", on=[orders], row=int),  # type: ignore[call-overload]
        "on is ",
        r"write a dict: \{Source\(...\): fold\}",
    ),
    "on with a topic's name": (
        lambda: Processor(name="t", on={named: fold}, row=int),
        "'orders' for a source",
        r"write Source\(topic, serde\)",
    ),
    "on without sources": (lambda: Processor(name="t", on={}, row=int), "names no source", "write on="),
    "a serde that was not made": (
        lambda: Source("orders", Json),  # type: ignore[arg-type]
        "the serde of source 'orders' is <class",
        r"write Json\(...\)",
    ),
    "an event time that nobody tells": (
        lambda: Processor(name="t", on={orders: FoldWith(lambda *_: None, ("event_ms",))}, row=int),
        "asks for event_ms",
        r"write Source\(..., time=...\)",
    ),
    "ticks without on": (
        lambda: of(on_tick=lambda rows, key, at_ms: None),
        "on_tick needs on=",
        r"write on=\{Source",
    ),
    "event timers without a time": (
        lambda: of(on_event=lambda rows, key, at_ms: None),
        "on_event needs time=",
        "take clock='append'",
    ),
    "a handover of version 1": (
        lambda: of(emits_from="handover", emits=("bills",)),
        "needs a version before it",
        "leave it out",
    ),
    "a retention in words": (
        lambda: Source("orders", Json(int), retention="7 weeks"),
        "'7 weeks'",
        "write a duration as",
    ),
    "a window in words": (lambda: Tumbling("1 hour"), "'1 hour'", "write a duration as"),
    "a window as text": (lambda: windowed(window="1h"), "window '1h'", "take Tumbling, Hopping"),
    "sessions without merge": (
        lambda: windowed(window=Session("1h")),
        "sessions merge",
        "a function of .earlier, later.",
    ),
    "a step of a topic's name": (
        lambda: Map(name="m", source=named, each=str, serde=Text()),
        "source is 'orders'",
        r"write Source\(topic, serde\)",
    ),
    "a step to nowhere": (
        lambda: Map(name="m", source=orders, each=str),
        "processor m",
        "give serde= for an internal topic, or to=",
    ),
    "a step that feeds itself": (
        lambda: Map(name="m", source=orders, each=str, to=Stream("orders", Text())),
        "emits to 'orders', which it reads",
        "emit to another topic",
    ),
    "a join of texts": (
        lambda: JoinTables(
            name="j",
            left=Source("a", Text()),
            right=orders,
            join=lambda left, right: None,
            to=Stream("o", Json(int | None)),
        ),
        "names no type for rows",
        r"take Json\(...\)",
    ),
    "a global without on": (
        lambda: of(reads=(Global("rates", orders, fold=fold, row=int),)),
        "reads needs on=",
        "write on=",
    ),
    "a list to traced": (lambda: traced([of()]), "traced", "give it a Processor"),  # type: ignore[type-var]
    "one processor for a list": (
        lambda: create_app(of(), Settings()),  # type: ignore[arg-type]
        "is the processor totals alone",
        r"write a list: \[totals\]",
    ),
    "two of one name": (
        lambda: create_app([of(), of()], Settings()),
        "two processors share a name",
        "give one another",
    ),
    "a fold for a processor": (
        lambda: create_app([fold], Settings()),  # type: ignore[list-item]
        "is not a Processor",
        r"write Processor\(name=",
    ),
    "Faust's broker": (
        lambda: create_app([of()], Settings(), broker="kafka://x"),
        "does not take Faust's setting broker",
        "set bootstrap.servers",
    ),
    "an internal topic of another version": (
        lambda: of(version=2, emits=(Internal("w", Json(int)),)),
        "an internal topic of version 1",
        r"write Internal\('w', ..., version=2\)",
    ),
    "a reader that was not raised": (
        lambda: create_app(
            [
                of(emits=(Internal("w", Json(int)),)),
                Processor(
                    name="b", on={Source(Internal("w", Json(int), version=2), Json(int)): fold}, row=int
                ),
            ],
            Settings(),
        ),
        "totals emits to w.v1 now",
        "raise b to version 2",
    ),
    "heartbeats as long as the session": (
        lambda: Settings(session_timeout_s=3, heartbeat_interval_s=3),
        "heartbeat_interval_s and session_timeout_s are 3 and 3",
        "at most a third",
    ),
    "a schema without a registry": (
        lambda: Avro(of=Mutable).decode(b"\0\0\0\0\1x"),
        "schema_registry_url is not set",
        "set it to http://host:port",
    ),
    # services
    "claims of nothing": (
        lambda: ClaimConsumer(Settings(), topics=[], group="g", client="c"),
        r"topics is \(\)",
        "name at least one topic",
    ),
    "a topic for a list of topics": (
        lambda: ClaimConsumer(Settings(), topics="orders", group="g", client="c"),
        "topics is 'orders'",
        r"write a list of topics: \['orders'\]",
    ),
    "a list of topics for a topic": (
        lambda: RangeConsumer(Settings(), topic=["orders"], group="g", client="c"),  # type: ignore[arg-type]
        r"topic is \['orders'\]",
        "write the name of one topic",
    ),
    "a claim consumer that is not open": (
        lambda: next(iter(BlockingClaimConsumer(Settings(), topics=["t"], group="g", client="c"))),
        "the claim consumer is not open",
        "use it in a `with` statement",
    ),
    "a table client that is not open": (
        lambda: BlockingTableClient(Settings(), [of()]).get("totals", "ada"),
        "the client is not open",
        "use it in a `with` statement",
    ),
    "a table client of an event loop that is not open": (
        lambda: asyncio.run(TableClient(Settings(), [of()]).get("totals", "ada")),
        "the table client is not open",
        "use it in a `with` statement",
    ),
    "claims in the application's name": (
        lambda: ClaimConsumer(Settings(app="g"), topics=["t"], group="g", client="c"),
        "group is 'g' and so is app",
        "Choose another group",
    ),
    "claims without a name": (
        lambda: ClaimConsumer(Settings(), topics=["t"], group="g", client=""),
        "client is ''",
        "give it a name",
    ),
    "a table client of one processor": (
        lambda: TableClient(Settings(), of()),  # type: ignore[arg-type]
        "is the processor totals alone",
        "write a list",
    ),
    "a producer that is not open": (
        lambda: SequencedProducer(Settings(), "shop").send("t", b""),
        "producer shop is not open",
        "use it in a `with` statement",
    ),
    "an outbox layout": (
        lambda: OutboxWriter(layout="kafka"),
        "no outbox layout 'kafka'",
        "choose one of holdfast",
    ),
    "an outbox row for no topic": (
        lambda: OutboxWriter().write(None, "my topic"),
        "topic 'my topic'",
        "Kafka takes 1 to 249 letters",
    ),
    "an outbox value that is no bytes": (
        lambda: OutboxWriter().write(None, "t", value={"a": 1}),
        "the value for t is dict",
        "the writer a value_encoder",
    ),
    "an outbox row on nothing": (
        lambda: OutboxWriter().write(object(), "t", value="x"),
        "cannot be written on builtins.object",
        "give it an SQLAlchemy Session",
    ),
    "an outbox row of 2 MB": (
        lambda: OutboxWriter().write(None, "t", value="x" * 2_000_000),
        "1000000 is the limit",
        "store the data elsewhere",
    ),
    # tests of one's own
    "a pipe to a topic that nobody reads": (
        lambda: Topology([of()]).__enter__().pipe("other", b"x"),
        "no processor reads 'other'",
        "sources are orders",
    ),
    "an emit that is not declared": (
        lambda: refusal(lambda rows, event, at_ms: [Emit("bills")]),
        "emit to 'bills': not among the emits",
        "declare it there",
    ),
}


def refusal(wrong: Callable[..., Any]) -> None:
    """Raise what a record is refused for by a fold."""
    changes = Folder(of(fold=wrong), DictStore()).fold([Batch([0], [0], ([b"x"],))])
    assert changes is not None
    raise FoldError(changes.refused[0].reason)


@pytest.mark.parametrize("what", DECLARATIONS)
def test_a_wrong_declaration_is_refused_where_it_is_made(what: str) -> None:
    mistake, cause, cure = DECLARATIONS[what]
    with pytest.raises(HoldfastError) as caught:
        mistake()
    (line,) = caught.value.args
    assert "\n" not in line.strip()
    assert re.search(cause, line), line
    assert re.search(cure, line), line
    assert re.search(cause, line).start() <= re.search(cure, line).start(), "the cause comes first"  # type: ignore[union-attr]


# -- commands


Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Give what runs a command in a folder with an application, and returns its exit code and the lines on
    stderr.
    """
    (tmp_path / "mistaken_shop.py").write_text(SHOP)
    (tmp_path / "mistaken_empty.py").write_text("x = 1\n")
    (tmp_path / "mistaken.db").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "KAFKA_"))]:
        monkeypatch.delenv(name)

    def run(*arguments: str, **variables: str) -> tuple[int, list[str]]:
        with monkeypatch.context() as patched:
            for name, value in variables.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main([*arguments])
        code = ended.value.code
        return (code if isinstance(code, int) else 0), [
            line for line in capsys.readouterr().err.splitlines() if line.strip()
        ]

    yield run
    for name in ("mistaken_shop", "mistaken_empty"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=2)
        yield kafka


SHOPS = ("-A", "mistaken_shop")
OFFLINE: dict[str, tuple[list[str], int, str, str]] = {
    # the command: (arguments, exit code, cause, cure)
    "a flag without a value": (["--set", "web_port", "config"], 2, "--set web_port", "write NAME=VALUE"),
    "an unknown flag": (
        ["--set", "web_prot=7", "config"],
        2,
        "web_prot: unknown setting",
        "did you mean web_port",
    ),
    "text for a number": (
        ["--set", "web_port=x", "config"],
        2,
        "web_port cannot be 'x'",
        "Expected `int`",
    ),
    "a number out of range": (["--set", "web_port=0", "config"], 2, "is 0", "the range is 1 to 65535"),
    "brokers of a variable that is not set": (
        ["--bootstrap", "", "config"],
        2,
        "bootstrap.servers .flag.: '' names no host: it is empty",
        "write host:port,host:port",
    ),
    "an unknown Kafka property": (
        ["--set", "kafka.bootstrap.server=x:1", "config"],
        2,
        "unknown Kafka property",
        "did you mean bootstrap.servers",
    ),
    "a file that is not there": (
        ["--config", "nowhere.toml", "config"],
        2,
        "nowhere.toml: cannot be read: No such file",
        "--config and HOLDFAST_CONFIG name the file",
    ),
    "a port for all without a token": (
        ["--set", "web_bind=0.0.0.0", "config"],
        2,
        "which others can reach",
        "set web_token",
    ),
    "an application that is not there": (
        ["-A", "mistaken_shp", "topics", "check"],
        2,
        "there is no module mistaken_shp",
        "start where its file lies",
    ),
    "a file for a module": (
        ["-A", "mistaken_shop.py", "topics", "check"],
        2,
        "-A mistaken_shop.py: -A takes a module and no file",
        "write -A mistaken_shop$",
    ),
    "a path for a module": (
        ["-A", "./mistaken_shop", "topics", "check"],
        2,
        "-A './mistaken_shop'",
        "name a module, such as -A shop",
    ),
    "a processor for an application": (
        ["-A", "mistaken_shop:totals", "topics", "check"],
        2,
        "found Processor instead of an app",
        r"write `app = create_app\(\[...\]\)`",
    ),
    "a principal without a type": (
        ["acls", "reader", "--principal", "shop"],
        2,
        "--principal 'shop': Kafka's principals have a type",
        "write User:shop",
    ),
    "a module without an application": (
        ["-A", "mistaken_empty", "topics", "check"],
        2,
        "has neither `app` nor `processors`",
        "name one with -A",
    ),
    "an application of another name": (
        ["-A", "mistaken_shop:application", "topics", "check"],
        2,
        "has no application",
        "leave out :application",
    ),
    "no application": (
        ["replay", "totals"],
        2,
        "has no processor totals",
        "name your application with -A",
    ),
    "an unknown processor": (
        [*SHOPS, "replay", "totls"],
        2,
        "has no processor totls",
        "did you mean totals",
    ),
    "until when": ([*SHOPS, "replay", "totals", "--until", "x"], 2, "--until 'x'", "write the last offset"),
    "an outbox without a database": (
        ["outbox", "status"],
        2,
        "name the database",
        "HOLDFAST_OUTBOX_DATABASE",
    ),
    "a database that is no URL": (
        ["outbox", "status", "--database", "shop"],
        2,
        "'shop' is not a database URL",
        "write one like postgresql://",
    ),
    "a database that is unknown": (
        ["outbox", "status", "--database", "oracle://x/y"],
        2,
        "does not know the database 'oracle'",
        "it knows postgresql",
    ),
    "a database that is away": (
        ["outbox", "status", "--database", "postgresql://u:p@127.0.0.1:1/x"],
        1,
        "Connection refused",
        "check the URL, that the database runs",
    ),
    "an outbox that was not made": (
        ["outbox", "status", "--database", "sqlite:///mistaken.db"],
        1,
        "table outbox is missing",
        "`holdfast outbox init .*` makes what is missing",
    ),
    "a mistyped file of a database": (
        ["outbox", "status", "--database", "sqlite:///mistakn.db"],
        1,
        "mistakn.db: there is no such file",
        "check the URL, or make the outbox there with `holdfast outbox init`",
    ),
    "an outbox in memory": (
        ["outbox", "init", "--database", "sqlite://"],
        2,
        "names no file, but a database in memory",
        "write one like sqlite:///shop.db",
    ),
    "shards of nothing": (
        ["outbox", "harvest", "--database", "sqlite:///new.db", "--shards", "0"],
        2,
        "shards is 0",
        "the range is 1 to 256",
    ),
    "a lake that is not named": (
        [*SHOPS, "replay", "totals", "--from", "bronze"],
        2,
        "needs the lake",
        "--lake DIR",
    ),
    "where to reset to": (["groups", "reset-offsets", "g"], 2, "given: none", "exactly one of --to-earliest"),
    "a day in words": (
        ["groups", "reset-offsets", "g", "--to-datetime", "yesterday"],
        2,
        "'yesterday' is not a valid time",
        "write 2026-",
    ),
    "a duration in words": (
        ["groups", "pause", "g", "--for", "10 minutes"],
        2,
        "'10 minutes' is not a duration",
        "write 90s, 10m",
    ),
    "members of nothing": (
        ["size", "--partitions", "8", "--claim-members", "3"],
        2,
        "claim_members and claim_partitions belong together",
        "tell how many members share how many partitions",
    ),
    "a project of an impossible name": (
        ["new", "1 shop"],
        2,
        "'1 shop' cannot name a project",
        "write lower-case letters",
    ),
}


@pytest.mark.parametrize("what", OFFLINE)
def test_a_mistake_at_the_command_line_is_one_line(what: str, run: Run) -> None:
    arguments, code, cause, cure = OFFLINE[what]
    check(run(*arguments, KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1"), code, cause, cure)


def check(ended: tuple[int, list[str]], code: int, cause: str, cure: str) -> None:
    """Hold what a command said against its cause and its cure, on one line of ours."""
    found, lines = ended
    assert (found, len(lines)) == (code, 1), lines
    assert lines[0].startswith("holdfast: ")
    assert re.search(cause, lines[0]), lines[0]
    assert re.search(cure, lines[0]), lines[0]


ONLINE: dict[str, tuple[list[str], int, str, str]] = {
    "partitions that nobody tells": (
        ["-A", "mistaken_shop", "--set", "app=new", "topics", "create"],
        1,
        "nothing tells how many partitions",
        "pass --partitions N",
    ),
    "topics that were not made": (
        [*SHOPS, "--set", "app=new", "verify", "totals"],
        1,
        "topic new-totals.v1-changelog",
        "`holdfast -A mistaken_shop topics create`",
    ),
    "a topic with a typing error": (
        [*SHOPS, "tail", "ordrs"],
        1,
        "there is no topic ordrs",
        "did you mean orders",
    ),
    "a group that is not there": (
        ["groups", "describe", "nope"],
        1,
        "there is no group nope",
        "`holdfast groups list`",
    ),
    "an offset of no topic": (
        ["explain", "nope", "0", "1"],
        1,
        "topic nope does not exist",
        "`holdfast topics list`",
    ),
    "an offset of no partition": (
        ["explain", "orders", "9", "1"],
        1,
        "has no partition 9",
        "only 0 to 1",
    ),
    "an offset of an empty partition": (
        ["explain", "orders", "0", "1"],
        1,
        "offset 1 is not in the log",
        "which is empty",
    ),
    "a topic that was not landed": (
        [*SHOPS, "replay", "totals", "--from", "bronze", "--lake", "nolake"],
        1,
        "no Delta table at",
        "land the topic first",
    ),
    "a version that is not declared": (
        [*SHOPS, "bootstrap", "totals", "--version", "3"],
        2,
        "declared as version 1",
        "name the application that declares the other",
    ),
    "ledgers that nobody keeps": (
        ["producers", "list"],
        2,
        "keeps no ledgers of producers",
        "set `books`",
    ),
}


@pytest.mark.parametrize("what", ONLINE)
def test_a_mistake_against_a_cluster_is_one_line(what: str, run: Run, kafka: EmbeddedKafka) -> None:
    arguments, code, cause, cure = ONLINE[what]
    (Path("mistaken_shop.py")).write_text(
        SHOP.replace('"orders"', '"missing"') if "create" in arguments else SHOP
    )
    check(run(*arguments, KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap, HOLDFAST_APP="shop"), code, cause, cure)


def test_a_table_without_a_worker_is_reported_along_with_an_empty_list(
    run: Run, kafka: EmbeddedKafka
) -> None:
    Path("mistaken_shop.py").write_text(SHOP)
    code, lines = run(
        *SHOPS, "tables", "switch", "totals", KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap, HOLDFAST_APP="shop"
    )
    assert (code, lines) == (0, ["no worker serves totals: start one, or wait until it is ready"])


@pytest.mark.long
def test_a_broker_that_is_away_is_one_line(run: Run) -> None:
    ended = run(*SHOPS, "topics", "check", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1", **QUICK)
    check(ended, 1, "no Kafka broker at 127.0.0.1:1 answered", "or start one with `holdfast dev up`")


@pytest.mark.parametrize(
    ("text", "cause", "cure"),
    [
        ("[holdfast\n", "is not valid TOML", "at line 1"),
        ("[holdfast]\nweb_prot=1\n", "unknown setting web_prot", "did you mean web_port"),
        ("[web]\nport=1\n[holdfast]\nweb_port=2\n", "both set web_port", "keep one of them"),
        ("web_port=2\n", "unknown table or key web_port", r"settings live in \[holdfast\]"),
        ("[hold]\nx=2\n", "unknown table or key hold", "did you mean holdfast"),
    ],
    ids=["syntax", "name", "twice", "outside", "section"],
)
def test_a_mistake_in_the_file_is_one_line(text: str, cause: str, cure: str, run: Run) -> None:
    Path("holdfast.toml").write_text(text)
    check(run("config"), 2, cause, cure)


@pytest.mark.parametrize(
    ("name", "value", "cause", "cure"),
    [
        ("HOLDFAST_WEB_PROT", "7", "HOLDFAST_WEB_PROT: unknown setting", "did you mean HOLDFAST_WEB_PORT"),
        (
            "HOLDFAST_KAFKA__SASL_PASSWORD_FILE",
            "/no/x",
            "cannot read /no/x: No such file",
            "name a file that",
        ),
    ],
)
def test_a_mistake_in_the_environment_is_one_line(
    name: str, value: str, cause: str, cure: str, run: Run
) -> None:
    check(run("config", **{name: value}), 2, cause, cure)


def test_an_outbox_of_another_layout_is_one_line(run: Run) -> None:
    assert run("outbox", "init", "--database", "sqlite:///new.db")[0] == 0
    ended = run("outbox", "init", "--database", "sqlite:///new.db", "--layout", "debezium")
    check(ended, 1, "has the layout holdfast, not debezium", "or another table with --table")


USAGE = {
    "a command": (["topcs"], "No such command 'topcs'"),
    "a command of a noun": (["topics", "lst"], "No such command 'lst'. Did you mean 'list'"),
    "an option": (["topics", "list", "--partitons", "3"], "No such option: --partitons"),
    "an argument": (["groups", "describe"], "Missing argument 'GROUP'"),
    "a level": ([*SHOPS, "worker", "-l", "loud"], "'loud' is not one of 'debug', 'info'"),
    "no nodes": (["dev", "up", "--nodes", "0"], "Invalid value for '--nodes'"),
    "a format": (["-o", "xml", "config"], "'xml' is not one of 'table', 'json'"),
}


@pytest.mark.parametrize("what", USAGE)
def test_a_wrong_word_is_answered_by_the_usage(what: str, run: Run) -> None:
    arguments, cause = USAGE[what]
    code, (usage, cure, said) = run(*arguments)
    assert code == 2
    assert usage.startswith("Usage: holdfast")
    assert re.fullmatch(r"Try 'holdfast.* --help' for help\.", cure)
    assert cause in said


def test_there_are_as_many_mistakes_as_were_promised() -> None:
    assert len(DECLARATIONS) + len(OFFLINE) + len(ONLINE) + len(USAGE) + 9 >= LEAST
