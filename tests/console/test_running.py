"""`holdfast console` of real workers on the embedded Kafka: what it shows as they are killed, and how it
ends.
"""

from __future__ import annotations

import re
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from holdfast import OutboxWriter, Settings, by_key
from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.dev.fixtures import SessionBroker
from holdfast.dev.ports import free_ports
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.outbox.schema.migrate import upgrade
from holdfast.outbox.settings import HarvestSettings
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.topic import TopicLog
from tests.agents.fleet import Fleet, Writer
from tests.console.running import PARTITIONS, RunningConsole, running_fleet, shown_text
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def broker() -> Iterator[SessionBroker]:
    with EmbeddedKafka(seed=20) as kafka:
        yield SessionBroker(config={"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def fleet(broker: SessionBroker, tmp_path: Path) -> Iterator[Fleet]:
    with running_fleet(broker, tmp_path) as found:
        yield found


@pytest.fixture
def start(fleet: Fleet, tmp_path: Path) -> Iterator[Callable[..., RunningConsole]]:
    made: list[RunningConsole] = []

    def console(*more: str) -> RunningConsole:
        made.append(RunningConsole(fleet, tmp_path, *more))
        return made[-1]

    yield console
    for each in made:
        each.close()


@pytest.mark.variant
def test_a_worker_comes_is_killed_and_is_replaced_before_ones_eyes(
    fleet: Fleet, broker: SessionBroker, start: Callable[..., RunningConsole]
) -> None:
    console = start()
    console.wait_shown("/", f"No worker of {fleet.settings.app} runs")
    first, second = fleet.worker().start(), fleet.worker().start()
    fleet.wait_spread(first, second)
    console.wait_shown("/", "All is well", "2 of 2", f"{PARTITIONS} of {PARTITIONS}")
    home = by_key("ada", PARTITIONS)
    Writer(broker).write_all(fleet.processors[0].topics[0], [(b"ada", b"ada", home, 0)] * 3)
    console.wait_shown("/tables/view?name=totals&verb=get&key=ada", "&#34;count&#34;: 3")
    console.wait_shown(f"/workers/view?url={first.url}", "ready", "this worker")
    killed, heir = first, second
    heir.signal(signal.SIGSTOP)  # for as long as it rests, no worker takes the partitions of the killed one
    killed.kill()
    console.wait_shown("/", f"Worker {killed.url} cannot be reached")
    heir.signal(signal.SIGCONT)
    console.wait_shown("/", "All is well", "1 of 1", f"{PARTITIONS} of {PARTITIONS}")
    console.wait_shown("/workers", "1 earlier worker", killed.url)
    assert heir.ready
    console.process.send_signal(signal.SIGTERM)
    assert console.process.wait(DEADLINE_S) == 0, console.log.read_text()


@pytest.mark.variant
def test_groups_are_shown_as_they_work(
    fleet: Fleet, broker: SessionBroker, start: Callable[..., RunningConsole]
) -> None:
    console = start()
    topic = fleet.processors[0].topics[0]
    broker.create_topic(fleet.settings.coordination_topic, partitions=2, exact=True)
    with BlockingClaimConsumer(
        fleet.settings, topics=[topic], group="billing", client="billing-1", heartbeat_interval_s=20
    ):
        console.wait_shown("/groups", "billing", "claim", f"{PARTITIONS} of {PARTITIONS}")
        shown = console.wait_shown("/groups/view?kind=claim&name=billing", "billing-1-", "fresh")
        assert shown.partition("Ownership over time")[0].count("billing-1-") == PARTITIONS
    console.wait_shown("/groups/view?kind=claim&name=nobody", "no client has ever claimed")


@pytest.mark.variant
def test_a_refused_record_is_found_with_its_reason_and_its_position_in_the_log(
    fleet: Fleet, broker: SessionBroker, start: Callable[..., RunningConsole]
) -> None:
    console, topic = start(), fleet.processors[0].topics[0]
    console.wait_shown("/quarantine", "No record was refused")
    worker = fleet.worker().start()
    fleet.wait_spread(worker)
    partition, offset = Writer(broker).write(topic, b"<\xff>", key=b"ada", partition=0)
    place = f"{topic}/{partition}/{offset}"
    console.wait_shown("/quarantine", place, "totals", "decode", "not yet")
    shown = console.wait_shown(f"/quarantine/view?name={place}", f"totals refused {place}", "0x3cff3e", "ada")
    assert "UnicodeDecodeError" in shown
    console.wait_shown("/quarantine?processor=another", "No such record waits")
    start().wait_shown("/", "1 record was refused within a day, and not tried again")
    console.wait_shown("/quarantine/view?name=nothing/0/0", "The quarantine holds no")
    log = f"/log?topic={topic}&partition=0&offset={offset}"
    console.wait_shown(log, "0x3cff3e", "committed readers", "see it", "log append time")
    console.wait_shown(f"/log?topic={topic}&partition=0&offset=99", "Trouble:")
    console.wait_shown("/topology", topic, "totals v1", "folds")
    shown = console.wait_shown("/producers/transactions", "No transaction hangs", "complete-commit")
    assert f"{fleet.settings.app}.totals.0" in shown
    console.wait_shown("/producers/transactions?q=nothing", "No transactional id has this in it")


def test_why_a_row_is_so_and_what_of_its_topic_is_landed(
    fleet: Fleet, broker: SessionBroker, start: Callable[..., RunningConsole], tmp_path: Path
) -> None:
    topic, lake, home = fleet.processors[0].topics[0], tmp_path / "lake", by_key("ada", PARTITIONS)
    writer = Writer(broker)
    writer.write_all(topic, [(b"ada", b"ada", home, 0)] * 3)
    land(fleet.settings, topic, str(lake))
    writer.write_all(topic, [(b"ada", b"ada", home, 0)])
    console = start("--set", f"console_lake={lake}")
    why = "/tables/why?name=totals&key=ada"
    shown = console.wait_shown(why, "4 of 4 changes", "in the lake", "in the topic", "&#34;count&#34;:4")
    assert [f"{topic}/{home}/{offset} in the" in shown for offset in range(5)] == [True] * 4 + [False]
    console.wait_shown(f"{why}&at={home}:1", "2 of 2 changes", f"Folded up to offset 1 of partition {home}")
    console.wait_shown("/tables/why?name=totals&key=nobody", "never a row of this key")
    console.wait_shown(f"{why}&at=yesterday", "No answer:", "yesterday")
    console.wait_shown("/lake", "sound", topic)
    console.wait_shown(f"/lake/view?topic={topic}", "sound", "1 landing in its", f"{home}034131")
    for file in (lake / "bronze" / topic).rglob("*.parquet"):
        file.unlink()
    console.wait_shown(f"/lake/view?topic={topic}", "1 fault", "is gone: it was removed by hand")
    console.wait_shown("/lake", "1 fault")
    console.wait_shown("/", f"Topic {topic} has 1 fault in the lake")
    bare = start()
    bare.wait_shown("/lake", "No lake is named")
    bare.wait_shown(why, "4 of 4 changes")


@pytest.mark.variant
def test_an_outbox_and_ledgers_are_shown_where_there_are_any(
    fleet: Fleet, start: Callable[..., RunningConsole], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'out.db'}"
    upgrade(url)
    engine = create_engine(url)
    with Session(engine) as session, session.begin():
        OutboxWriter().write(session, "orders", key="ada", value=b"1")
    engine.dispose()
    console = start("--set", f"outbox_database={url}")
    console.wait_shown("/outbox", "Rows waiting1", "No harvester leads", "Latency: topic", "does not exist")
    console.wait_shown("/producers", "keeps no ledgers of producers")
    bare = start()
    bare.wait_shown("/outbox", "No outbox is named")
    wrong = start("--set", f"outbox_database=sqlite:///{tmp_path / 'other.db'}")
    wrong.wait_shown("/outbox", "Trouble:")
    wrong.wait_shown("/", "The outbox cannot be looked at:")


@pytest.mark.variant
def test_the_wait_of_rows_of_an_outbox_is_shown_and_that_they_wait_too_long(
    fleet: Fleet, start: Callable[..., RunningConsole], tmp_path: Path
) -> None:
    url, topic = f"sqlite:///{tmp_path / 'out.db'}", fleet.processors[0].topics[0]
    upgrade(url)
    engine = create_engine(url)

    def write(rows: int) -> None:
        with Session(engine) as session, session.begin():
            for at in range(rows):
                OutboxWriter().write(session, topic, key=f"k{at}", value=b"ada")

    write(3)
    console = start("--set", f"outbox_database={url}")
    harvest = HarvestSettings(database=url, kafka=fleet.settings, name=f"{fleet.settings.app}-outbox")
    with Harvester(harvest):
        console.wait_shown("/outbox", "Rows waiting0", "Latency: how long rows waited", "03")
    write(1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE outbox SET created_ms = created_ms - 3600000"))
    engine.dispose()
    console.wait_shown("/", "1 rows of the outbox wait, the first for 3,6")


def test_acts_are_done_and_noted_with_their_actor_and_outcome(
    fleet: Fleet, broker: SessionBroker, start: Callable[..., RunningConsole]
) -> None:
    audit, topic = broker.create_topic("audit"), fleet.processors[0].topics[0]
    broker.create_topic(fleet.settings.coordination_topic, partitions=2, exact=True)
    console = start("--set", "console_acting_token=act", "--set", f"console_audit_topic={audit}")
    console.wait_shown("/", "Sign in")
    person = Person(console.url)
    person.post("/sign-in", token="act", who="Ada")
    worker = fleet.worker().start()
    fleet.wait_spread(worker)
    partition, offset = Writer(broker).write(topic, b"\xff", key=b"ada", partition=0)
    place = f"{topic}/{partition}/{offset}"
    console.wait_shown("/quarantine", place)
    with BlockingClaimConsumer(
        fleet.settings, topics=[topic], group="billing", client="billing-1", heartbeat_interval_s=1
    ):
        page = "/groups/view?kind=claim&name=billing"
        console.wait_shown(page, "fresh")
        assert "Group billing is paused for 5 minutes" in person.act(
            page, what="pause", on="billing", minutes="5"
        )
        console.wait_shown("/", "Claim group billing is paused")
        assert "minutes is" in person.act(page, what="pause", on="billing", minutes="0")
        assert "Group billing goes on" in person.act(page, what="resume", on="billing")
        console.wait_shown(page, "fresh", f"{PARTITIONS} of {PARTITIONS}")
        preview = "/groups/reset?kind=claim&name=billing&where=to-latest&value=&topics="
        console.wait_shown(
            preview, f"{PARTITIONS} partitions: 0 records would be worked on again, 1 left out"
        )
        told = person.act(
            preview, what="reset", on="billing", kind="claim", where="to-latest", value="0", topics=""
        )
        assert f"{PARTITIONS} partitions of group billing were sent to-latest" in told
        console.wait_shown(preview, "0 records would be worked on again, 0 left out")
        console.wait_shown(page, "Ownership over time", "billing-1-", "nobody")
        told = person.act(
            page, what="reset", on="billing", kind="claim", where="to-latest", value="0", topics="nothing"
        )
        assert "<h1>Not done" in told
    refused = f"/quarantine/view?name={place}"
    assert "was sent again, as" in person.act(refused, what="retry", on=f"{place}/totals")
    assert "was tried again already" in person.act(page, what="retry", on=f"{place}/totals")
    console.wait_shown(
        "/quarantine", f"{topic}/0/{offset + 1}", "not yet"
    )  # refused again, as a record of its own
    found = [msgspec.json.decode(value) for value in read_values(broker, audit)]
    assert [(each["who"], each["what"], each["outcome"]) for each in found] == [
        ("Ada", what, outcome)
        for what, end in (
            ("pause", "done"),
            ("pause", "failed"),
            ("resume", "done"),
            ("reset", "done"),
            ("reset", "failed"),
            ("retry", "done"),
            ("retry", "failed"),
        )
        for outcome in ("asked", end)
    ]
    assert [first["act"] == second["act"] for first, second in zip(found[::2], found[1::2], strict=True)] == [
        True
    ] * 7


class Person:
    """A person who signs in and sends forms, as a browser would."""

    def __init__(self, url: str) -> None:
        self._url, self._opener = url, urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

    def post(self, path: str, **form: str) -> str:
        """Return the answer to a form of the console's own."""
        body = urllib.parse.urlencode(form).encode()
        asked = urllib.request.Request(self._url + path, body, {"Origin": self._url})
        try:
            with self._opener.open(asked, timeout=DEADLINE_S) as reply:
                return str(reply.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read().decode())

    def act(self, page: str, **form: str) -> str:
        """Return the outcome of the form on *page*."""
        try:
            with self._opener.open(self._url + page, timeout=DEADLINE_S) as reply:
                shown = reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                told = " ".join(shown_text(error.read().decode()).split())
            raise AssertionError(f"{page}: {error.code}: {told}") from None
        found = re.search(r'name="form_token" value="([^"]*)"', shown)
        assert found is not None, page
        return self.post("/act", form_token=found[1], **form)


def read_values(broker: SessionBroker, topic: str) -> list[bytes]:
    """Return the values of a topic of one partition."""
    with TopicLog(Settings(kafka={"bootstrap.servers": broker.bootstrap}), topic) as log:
        (end,) = log.ends([0]).values()
    consumer = Consumer({**broker.client_config(), "group.id": "audit", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < end:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        values.append(message.value() or b"")
    consumer.close()
    return values


@pytest.mark.variant
def test_a_broker_that_is_away_is_reported_and_ends_nothing(
    fleet: Fleet, start: Callable[..., RunningConsole]
) -> None:
    console = start("--bootstrap", f"127.0.0.1:{free_ports(1)[0]}")
    console.wait_shown("/", "Kafka does not answer the console")
    console.process.send_signal(signal.SIGINT)
    assert console.process.wait(DEADLINE_S) == 0, console.log.read_text()


def test_a_taken_port_is_one_line(fleet: Fleet, start: Callable[..., RunningConsole]) -> None:
    first = start()
    first.wait_shown("/", "Overview")
    second = start("--port", first.url.rpartition(":")[2])
    assert second.process.wait(DEADLINE_S) == 2
    assert re.search(
        r"cannot listen on 127.0.0.1 port \d+: .*set console_bind and console_port", second.log.read_text()
    )
