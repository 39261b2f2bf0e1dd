"""A changelog that is emptied, or deleted and made again, while its sources are whole: the table comes back,
and no sent result is sent a second time. Where that cannot be, the worker does not begin.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.tables.answers import Answer, AtLeast
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.commit_notes import decode_commit_note, shortened
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import GroupError, OtherTopicError
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.verify.table import verify
from tests.agents import lossy_shop
from tests.agents.fleet import environment_of
from tests.support.harness import TIMES, Worker, module_command, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic

pytestmark = [pytest.mark.process, pytest.mark.long]

RESULTS = {"totals": "big", "both": "joined", "ears": "heard"}


class Shop:
    """The application on a broker of its own, with one worker."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        config = {key: str(value) for key, value in kafka.client_config().items()}
        self.settings = Settings(app="shop", kafka=config, data_dir=folder / "data", metadata_interval_s=1)
        self.admin = Admin(self.settings)
        for topic in (lossy_shop.ORDERS, lossy_shop.CUSTOMERS):
            kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
        self.create()
        self._producer = Producer(kafka.client_config())
        self.sent = Counter[str]()
        self.environment = environment = {
            **environment_of(self.settings),
            **{f"HOLDFAST_{key.upper()}": str(value) for key, value in TIMES.items()},
        }
        self.worker = Worker("w1", folder, environment, module_command("tests.agents.lossy_shop"))

    def create(self) -> None:
        create_topics(self.settings, lossy_shop.processors(), partitions=1)

    def changelog(self, name: str) -> str:
        (found,) = [
            each.changelog(self.settings.app) for each in lossy_shop.processors() if each.name == name
        ]
        return found

    def write(self, topic: str, words: Iterable[str]) -> None:
        for word in words:
            self._producer.produce(topic, word.encode(), key=word.encode())
            self.sent[topic] += 1
        assert self._producer.flush(DEADLINE_S) == 0

    def run(self, worker: Worker | None = None, **more: str) -> Worker:
        """Start a worker, and return it when every table has folded all of its sources."""
        found = (worker or self.worker).start(**more).wait_ready()
        self.run_on(found)
        return found

    def run_on(self, worker: Worker | None = None) -> None:
        """Return when every table has folded all of its sources."""
        found = worker or self.worker
        orders, customers = self.sent[lossy_shop.ORDERS], self.sent[lossy_shop.CUSTOMERS]
        wanted = {"totals": orders - 1, "both": orders + customers - 1, "shouts": orders - 1}

        def folded() -> bool:
            applied = {name: at for (name, _), at in found.applied().items()}
            wanted["ears"] = max((at for at, _ in self.read("shouts.v1")), default=-1)
            return all(applied.get(name, -1) >= at for name, at in wanted.items())

        wait_for("all is folded", folded, DEADLINE_S, found.tail)

    def read(self, topic: str) -> list[tuple[int, bytes | None]]:
        """Return offsets and values of the records in *topic*."""
        messages = read_topic(self.kafka, topic)[0]  # type: ignore[arg-type]
        return [(each.offset() or 0, each.value()) for each in messages]

    def results(self) -> dict[str, Counter[bytes | None]]:
        """Return the sent records, by topic, how often; with the internal topic and the quarantine."""
        topics = [*RESULTS.values(), "shouts.v1"]
        found = {topic: Counter(value for _, value in self.read(topic)) for topic in topics}
        quarantined = [at for at, _ in self.read(self.settings.quarantine_topic)]
        return {**found, "quarantined": Counter({b"": len(quarantined)})}

    def rows(self, table: str) -> str:
        """Return the rows of a table as its worker serves them."""
        status, page = self.worker.ask(f"/tables/{table}/0/scan")
        assert status == 200, page
        return page

    def remake(self, *names: str) -> None:
        """Delete the changelogs of these processors and make them again."""
        self.admin.delete([self.changelog(name) for name in names])
        self.create()

    def empty(self, topic: str, upto: int | None = None) -> None:
        """Delete the records of *topic*, or those before an offset."""
        (_, end) = self.admin.offsets([(topic, 0)])[topic, 0]
        self.admin.delete_before({(topic, 0): end if upto is None else upto})

    def forget_group(self) -> None:
        """Lose what the group has committed."""
        groups = BrokerGroups(self.settings, timeout_s=DEADLINE_S)
        wait_for("an empty group", lambda: _is_empty(groups), DEADLINE_S)
        groups.delete("shop")

    def close(self) -> None:
        self.worker.close()


def _is_empty(groups: BrokerGroups) -> bool:
    try:
        groups.require_stopped("shop")
    except GroupError:
        return False
    return True


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with EmbeddedKafka() as kafka, closing(Shop(kafka, tmp_path)) as shop:
        yield shop


ALL = tuple(each.name for each in lossy_shop.processors())


def folded_once(shop: Shop) -> dict[str, Counter[bytes | None]]:
    """Have a worker fold some records, and stop; return what it sent."""
    shop.write("orders", [f"o{at % 7}" for at in range(30)] + ["bad"])
    shop.write("customers", [f"c{at % 5}" for at in range(20)])
    shop.write("orders", [f"o{at % 3}" for at in range(10)])
    shop.run().stop()
    sent = shop.results()
    assert sent["big"].total() == sent["heard"].total() == 40
    assert sent["joined"].total() == 61
    assert sent["quarantined"].total() == 2
    return sent


@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.parametrize("lose", ["made again", "emptied"])
def test_a_sent_result_is_not_sent_again(shop: Shop, lose: str, wiped: bool) -> None:
    sent = folded_once(shop)
    if lose == "made again":
        shop.remake(*ALL)
    else:
        for name in ALL:
            shop.empty(shop.changelog(name))
    if wiped:
        shop.worker.wipe()
    shop.run()
    assert shop.results() == sent
    shop.write("orders", ["new"] * 3)
    shop.run_on()
    now = shop.results()
    assert now["big"] - sent["big"] == Counter([b"new 1", b"new 2", b"new 3"])
    assert now["joined"] - sent["joined"] == Counter([b"new 1", b"new 2", b"new 3"])
    assert now["heard"] - sent["heard"] == Counter([b"NEW 1", b"NEW 2", b"NEW 3"])
    shop.worker.stop()
    for each in lossy_shop.processors():
        assert verify(each, shop.settings, ReplayOptions(engine="local")).equal, each.name


@pytest.mark.variant
def test_a_part_that_is_left_is_no_table(shop: Shop) -> None:
    sent = folded_once(shop)
    rows = None
    for name in ALL:
        (_, end) = shop.admin.offsets([(shop.changelog(name), 0)])[shop.changelog(name), 0]
        shop.empty(shop.changelog(name), end - 2)
    shop.worker.wipe()
    shop.run()
    assert shop.results() == sent
    rows = shop.rows("totals")
    shop.worker.stop()
    for each in lossy_shop.processors():
        assert verify(each, shop.settings, ReplayOptions(engine="local")).equal, each.name
    shop.worker.wipe()  # the rest of the log before is no reason a second time
    shop.run()
    assert shop.rows("totals") == rows
    assert not shop.worker.said("had lost records")


@pytest.mark.variant
def test_a_worker_that_dies_while_it_folds_again_leaves_the_note(shop: Shop) -> None:
    sent = folded_once(shop)
    shop.remake(*ALL)
    shop.worker.wipe()
    shop.worker.start().wait_said("had lost records", DEADLINE_S)
    shop.worker.kill()
    shop.worker.wipe()
    shop.run()
    assert shop.results() == sent
    shop.worker.stop()
    shop.remake("both", "shouts")
    shop.worker.wipe()
    shop.run()
    assert shop.results() == sent, "a second loss, of some"


@pytest.mark.variant
@pytest.mark.parametrize("store", [True, False])
def test_a_source_that_was_cut_too_is_no_table_unless_that_is_accepted(shop: Shop, store: bool) -> None:
    sent = folded_once(shop)
    shop.remake("totals")
    shop.empty("orders", 5)
    if not store:
        shop.worker.wipe()
    shop.worker.start()
    assert shop.worker.wait_exit(DEADLINE_S) == 1
    (line,) = shop.worker.said("orders begins at offset 5.*--accept-partial.*holdfast reset")[-1:]
    assert "totals.v1 partition 0" in line
    assert "Restore the changelog" in line
    command = [sys.executable, "-P", "-m", "holdfast.cli", "-A", "tests.agents.lossy_shop", "worker"]
    with closing(Worker("w1", shop.folder, shop.environment, [*command, "--accept-partial"])) as accepting:
        accepting.start(LOSSY_COMMAND="1").wait_ready()
        shop.run_on(accepting)
        assert shop.results() == sent
        assert "partial" in accepting.ask("/tables")[1]


@pytest.mark.variant
def test_without_a_committed_position_no_worker_guesses(shop: Shop) -> None:
    folded_once(shop)
    shop.remake("totals")
    shop.forget_group()
    for _ in range(2):  # the store that knows it was set aside by the first
        shop.worker.start()
        assert shop.worker.wait_exit(DEADLINE_S) == 1
        assert shop.worker.said("no committed position.*--accept-partial.*holdfast reset")
    shop.run(HOLDFAST_ACCEPT_PARTIAL="true")
    assert shop.results()["big"].total() == 80, "all is sent again, as it was accepted"


@pytest.mark.variant
def test_a_topic_of_results_that_was_made_again_too_gets_all_of_them(shop: Shop) -> None:
    sent = folded_once(shop)
    shop.remake("totals")
    shop.admin.delete(["big"])
    shop.create()
    shop.worker.wipe()
    shop.run()
    assert shop.results() == sent


@pytest.mark.variant
def test_a_topic_of_results_that_is_made_again_below_a_worker_gets_none_twice(shop: Shop) -> None:
    shop.write("orders", [f"o{at}" for at in range(9)])
    shop.run()
    shop.admin.delete(["big"])
    shop.create()

    wanted, admin = shop.admin.topic_ids(["big"]).topics["big"], AdminClient(shop.kafka.client_config())

    def is_noted() -> bool:
        shop.write("orders", ["more"])
        shop.run_on()
        (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("shop")]).values()
        notes = [
            decode_commit_note(each.metadata or "") for each in asked.result(DEADLINE_S).topic_partitions
        ]
        return any(note is not None and note.out.get("big") == shortened(wanted) for note in notes)

    wait_for("a commit that names the new topic", is_noted, DEADLINE_S, shop.worker.tail)
    shop.worker.stop()
    sent = shop.results()
    shop.remake("totals")
    shop.worker.wipe()
    shop.run()
    assert shop.results() == sent


@pytest.mark.variant
def test_a_source_of_the_same_name_is_another(shop: Shop) -> None:
    folded_once(shop)
    shop.admin.delete([*map(shop.changelog, ALL), "orders", "customers", "shouts.v1", "shop-both-choices"])
    shop.sent.clear()
    for topic in ("orders", "customers"):
        shop.kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    shop.create()
    before = shop.results()
    shop.write("orders", ["fresh"] * 50)
    shop.run()
    now = shop.results()
    assert (now["big"] - before["big"]).total() == 50, "what the other log's position says counts for nothing"


@pytest.mark.parametrize("table", ["totals", "both"])
def test_an_answer_of_the_old_log_is_no_bound_for_one_of_the_new(shop: Shop, table: str) -> None:
    def ask(at_least: AtLeast | None) -> Answer[Any]:
        with BlockingTableClient(shop.settings, lossy_shop.processors()) as tables:
            return tables.get(table, "o1", partition=0, at_least=at_least, timeout_s=DEADLINE_S)

    shop.write("orders", ["o1"] * 30)
    shop.write("customers", ["o1"] * 3)
    shop.run()
    before = ask(None)
    ids = Admin(shop.settings).topic_ids(["orders", "customers"]).topics
    assert before.reached.topic_ids == {
        topic: ids[topic] for topic in (["orders"] if table == "totals" else ["orders", "customers"])
    }
    assert ask(before.reached) == before
    shop.worker.stop()
    shop.admin.delete([*map(shop.changelog, ALL), "orders", "customers", "shouts.v1", "shop-both-choices"])
    shop.sent.clear()
    for topic in ("orders", "customers"):
        shop.kafka.create_topic(topic, config={"message.timestamp.type": "LogAppendTime"})
    shop.create()
    shop.write("orders", ["o1"] * 50)
    shop.write("customers", ["o1"] * 3)
    shop.run()
    with pytest.raises(
        OtherTopicError, match=f"topic orders with id {re.escape(ids['orders'])}.* made again"
    ):
        ask(before.reached)
    now = ask({0: before.reached.offsets[0]})
    assert now.value == (50 if table == "totals" else 53), "the new log reaches that offset too"
    assert ask(now.reached).value == now.value


@pytest.mark.variant
def test_a_source_that_grows_ends_its_workers_with_the_cure(shop: Shop) -> None:
    shop.write("orders", ["a", "b"])
    shop.run()
    admin = AdminClient(shop.kafka.client_config())
    for done in admin.create_partitions([NewPartitions("orders", 3)]).values():
        done.result(DEADLINE_S)
    assert shop.worker.wait_exit(DEADLINE_S) == 1
    assert shop.worker.said(
        "topic orders had 1 partitions when this worker started, and has 3 now.*version=2"
    )


@pytest.mark.variant
@pytest.mark.parametrize("topic", ["customers", "shop-totals.v1-changelog", "shop-both-choices"])
def test_a_topic_that_is_made_again_below_a_worker_ends_it(shop: Shop, topic: str) -> None:
    shop.write("orders", ["a", "b"])
    shop.run()
    shop.admin.delete([topic])
    shop.kafka.create_topic(topic, config={"cleanup.policy": "compact" if "log" in topic else "delete"})
    assert shop.worker.wait_exit(DEADLINE_S) == 1
    assert shop.worker.said(f"topic {topic} was deleted and made again")


@pytest.mark.variant
def test_of_two_workers_with_one_instance_id_the_first_ends(shop: Shop) -> None:
    shop.run(HOLDFAST_INSTANCE_ID="same")
    second = Worker("w2", shop.folder, shop.environment, module_command("tests.agents.lossy_shop"))
    with closing(second):
        second.start(HOLDFAST_INSTANCE_ID="same")
        assert shop.worker.wait_exit(DEADLINE_S) == 1
        assert shop.worker.said(r"leaving: another worker has joined group shop.*instance_id, same,")
        second.wait_ready()
        shop.write("orders", ["a", "b"])
        shop.run_on(second)
        second.stop()


@pytest.mark.variant
@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.parametrize("how", ["bootstrap", "handover", "migration"])
def test_a_later_version_that_lost_its_changelog_sends_nothing_twice(
    shop: Shop, how: str, wiped: bool
) -> None:
    folded_once(shop)
    (later, *_) = lossy_shop.processors(how)
    create_topics(shop.settings, lossy_shop.processors(how), partitions=1)
    local = ReplayOptions(engine="local")
    if how != "handover":
        bootstrap(later, shop.settings, BootstrapOptions(replay=local, migrate=how == "migration"))
    shop.write("orders", [f"o{at % 3}" for at in range(9)])
    shop.run(LOSSY_TOTALS=how)
    sent, rows = shop.results(), shop.rows("totals")
    assert sent["big"].total() == 49
    shop.worker.stop()
    shop.admin.delete([later.changelog(shop.settings.app)])
    create_topics(shop.settings, lossy_shop.processors(how), partitions=1)
    if wiped:
        shop.worker.wipe()
    if how == "migration":
        assert shop.worker.start(LOSSY_TOTALS=how).wait_exit(DEADLINE_S) == 1
        assert shop.worker.said("is empty, and migrate= says .*: run `holdfast bootstrap totals --version 2")
        bootstrap(later, shop.settings, BootstrapOptions(replay=local, migrate=True))
    shop.run(LOSSY_TOTALS=how)
    assert (shop.results(), shop.rows("totals")) == (sent, rows)
    shop.write("orders", ["new"] * 3)
    shop.run_on()
    assert shop.results()["big"] - sent["big"] == Counter([b"new 1", b"new 2", b"new 3"])
    shop.worker.stop()
    assert verify(later, shop.settings, ReplayOptions(engine="local")).equal


@pytest.mark.variant
@pytest.mark.parametrize("wiped", [False, True])
def test_a_standby_of_a_lost_changelog_follows_its_owner(shop: Shop, wiped: bool) -> None:
    second = Worker("w2", shop.folder, shop.environment, module_command("tests.agents.lossy_shop"))

    with closing(second):
        sent = folded_once(shop)
        shop.run()
        second.start().wait_ready()
        shop.worker.stop()
        second.stop()
        shop.remake(*ALL)
        if wiped:
            second.wipe()
        shop.run()
        second.start().wait_ready()
        shop.write("orders", ["new"] * 3)
        shop.run_on()
        shop.worker.kill()
        shop.write("orders", ["more"] * 2)
        shop.run_on(second)
        now = shop.results()
        assert now["big"] - sent["big"] == Counter([b"new 1", b"new 2", b"new 3", b"more 1", b"more 2"])
        assert now["joined"].total() - sent["joined"].total() == 5
        assert now["heard"].total() - sent["heard"].total() == 5
        second.stop()
    for each in lossy_shop.processors():
        assert verify(each, shop.settings, ReplayOptions(engine="local")).equal, each.name
