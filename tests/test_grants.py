"""Each role does its job with exactly the grants that docs/SECURITY.md names, on a real broker with ACLs,
and fails without any one of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from holdfast.cli.doctor.cluster import rights
from holdfast.cli.doctor.diagnosis import Fitness
from holdfast.cli.options.application import Application as LoadedApplication
from holdfast.cli.topics.resetting import ApplicationReset
from holdfast.clients.claims.consumer import ClaimConsumer
from holdfast.clients.claims.logs.claim_log import CAPABILITY_HEADER
from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.quarantine.skips import SkipRequests
from holdfast.clients.tables.answers import Answer
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import check_topics, create_topics
from holdfast.clients.topics.grants import (
    administrator_grants,
    claim_client_grants,
    reader_grants,
    replayer_grants,
    resetter_grants,
    worker_grants,
)
from holdfast.clients.topics.types import AlterConfig
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import RESET_INSTANCE
from holdfast.core.claims.frames import (
    ClaimingPartition,
    Heartbeat,
    ReleasingPartition,
    coordination_partition,
    encode,
)
from holdfast.core.claims.resets import Aim, Where
from holdfast.core.engine.declared.serdes import Bytes
from holdfast.core.engine.declared.sources import Source
from holdfast.core.kafka.grants import Grant, Operation, Resource, merged
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import HoldfastError
from holdfast.outbox.commands import Verb, tell
from holdfast.outbox.grants import harvester_grants
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.outbox.settings import HarvestSettings, Strategy
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.verify.table import verify
from holdfast.streams import Filter
from tests.agents.clerks import clerks_app
from tests.chaos.counting import processors
from tests.outbox.databases import FreshOutbox
from tests.outbox.harvesting import SlowProducer
from tests.support.harness import Application, running, wait_for
from tests.support.kafka_clients import clients_alive
from tests.support.patience import DEADLINE_S
from tests.support.secured import Guarded, environment

MIB = 1 << 20
POSITIVE_S, LEAST_S = DEADLINE_S, 8.0
"""The time limit of a job that has all it needs, and the least time to watch one that has not."""


@pytest.fixture
def guarded(guarded_broker: Guarded) -> Guarded:
    """Give a broker with SCRAM, TLS and ACLs."""
    return guarded_broker


@dataclass
class Job:
    """The work of a role:

    *work* raises unless it is done in the seconds it is given, as the principal with these Kafka properties.
    """

    grants: list[Grant]
    work: Callable[[Mapping[str, str], float], None]


MakeJob = Callable[[Guarded, Path], Job]


# -- the jobs


def worker_job(guarded: Guarded, folder: Path) -> Job:
    """A worker folds records, emits, quarantines one, skips what it cannot read, announces itself, restores
    on an empty disk, takes a table on to its next version, and will not start while a reset is under way.
    """
    broker = SessionBroker(config=guarded.root())
    application = Application(broker, folder, partitions=1, unreadable="quarantine", unpacked_batch_bytes=MIB)
    counts = application.processors[0]
    later = processors(application.source, application.out, tally_version=2)
    # Who takes a table on keeps the rights to the version before.
    grants = merged(
        grant
        for each in (application.processors, later)
        for grant in worker_grants(application.settings, each)
    )

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        delete_topics(guarded, grants)
        application.create_topics()
        producer = Producer(guarded.root())
        for value in (*(b"add ada %d" % number for number in range(20)), b"raise ada 1"):
            producer.produce(application.source, value, partition=0)
        assert producer.flush(POSITIVE_S) == 0
        send_bomb(guarded, application.source)
        producer.produce(application.source, b"add ada 22", partition=0)
        assert producer.flush(POSITIVE_S) == 0
        with running(application):
            for _ in range(2):
                worker = application.worker()
                worker._environment |= environment(kafka)
                worker.start().wait_ready(patience_s)
                application.wait_applied({0: 22}, patience_s)
                with BlockingTableClient(application.settings, [counts]) as tables:
                    assert (
                        seen(tables.get(counts, "ada", partition=0, at_least=(0, 22), timeout_s=patience_s))
                        == 21
                    )
                worker.stop(patience_s)
                application.workers.clear()
            create_topics(application.settings, later, partitions=1)
            worker = application.worker()
            worker._environment |= environment(kafka) | {"CHAOS_TALLY": "2"}
            worker.start().wait_ready(patience_s)
            application.wait_applied({0: 22}, patience_s)
            wait_for(
                "the switch", lambda: worker.said("version 2 of tally is current"), patience_s, worker.tail
            )
            worker.stop(patience_s)
            application.workers.clear()
        assert committed(guarded, application.out) > 0
        assert committed(guarded, application.settings.quarantine_topic) > 0
        assert committed(guarded, application.settings.skips_topic) > 0
        check_refusal(application, kafka, patience_s)

    return Job(grants, work)


def delete_topics(guarded: Guarded, grants: Sequence[Grant]) -> None:
    """Delete the topics that *grants* name, wholly or by how they begin: each run of a job is on topics of
    its own, under the same names, so that what an earlier run has done is not found done.
    """
    literal = {grant.name for grant in grants if grant.resource == "topic" and grant.pattern == "literal"}
    begin = tuple(grant.name for grant in grants if grant.resource == "topic" and grant.pattern == "prefixed")

    def left() -> list[str]:
        topics = guarded.admin.list_topics(timeout=DEADLINE_S).topics
        return sorted(name for name in topics if name in literal or name.startswith(begin))

    SessionBroker(config=guarded.root()).delete_topics(left())
    wait_for("the topics to be gone", lambda: not left(), POSITIVE_S)


def check_refusal(application: Application, kafka: Mapping[str, str], patience_s: float) -> None:
    """Fail unless a worker refuses to start while a reset is under way."""
    application.broker.create_topic(application.settings.reset_topic, exact=True)
    with running(application):
        worker = application.worker()
        worker._environment |= environment(kafka)
        assert worker.start().wait_exit(patience_s) > 0
        assert worker.said("run `holdfast reset --execute` again"), worker.tail()
        application.workers.clear()


def clerks_job(guarded: Guarded, folder: Path) -> Job:
    """A worker of Faust agents groups records again, counts them in a table of Faust's, skips what it cannot
    read, has a leader, announces itself, restores on an empty disk, and will not start while a reset is under
    way.
    """
    broker = SessionBroker(config=guarded.root())
    application = Application(
        broker,
        folder,
        partitions=1,
        module="tests.agents.clerks",
        unreadable="quarantine",
        unpacked_batch_bytes=MIB,
    )
    settings, changelog = application.settings, f"{application.name}-words-changelog"
    application._environment["CLERKS_SOURCE"] = application.source
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_APP", application.name)
        grants = worker_grants(settings, [], clerks_app(application.source).faust_topics())

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        delete_topics(guarded, grants)
        broker.create_topic(application.source, partitions=1, exact=True)
        create_topics(settings, [], partitions=1)
        producer = Producer(guarded.root())
        with running(application):
            for count in (1, 2):
                producer.produce(application.source, b"ada", partition=0)
                assert producer.flush(POSITIVE_S) == 0
                send_bomb(guarded, application.source)
                worker = application.worker()
                worker._environment |= environment(kafka)
                worker.start().wait_ready(patience_s)
                wait_for("a count", partial(exists, guarded, changelog, count), patience_s, worker.tail)
                wait_for(
                    "a skip", partial(exists, guarded, settings.skips_topic, count), patience_s, worker.tail
                )
                worker.stop(patience_s)
                application.workers.clear()
        assert last_value(guarded, changelog) == b"2"
        assert exists(guarded, settings.quarantine_topic, 2)
        assert exists(guarded, settings.workers_topic)
        assert exists(guarded, f"{application.name}-__assignor-__leader", least=0)
        check_refusal(application, kafka, patience_s)

    return Job(grants, work)


def exists(guarded: Guarded, topic: str, least: int = 1) -> bool:
    """Return whether there is such a topic, with so many records."""
    return (
        topic in guarded.admin.list_topics(timeout=DEADLINE_S).topics and committed(guarded, topic) >= least
    )


def last_value(guarded: Guarded, topic: str) -> bytes | None:
    """Return the value of the last record of the topic."""
    with closing(Consumer({**guarded.root(), "group.id": uuid.uuid4().hex})) as consumer:
        consumer.assign([TopicPartition(topic, 0, committed(guarded, topic) - 1)])
        message = consumer.poll(POSITIVE_S)
    assert message is not None, f"{topic} was not read"
    return message.value()


def send_bomb(guarded: Guarded, topic: str) -> None:
    """Write a record that unpacks to more than MIB."""
    producer = Producer({**guarded.root(), "compression.type": "zstd", "message.max.bytes": 10 * MIB})
    producer.produce(topic, bytes(2 * MIB), partition=0)
    assert producer.flush(POSITIVE_S) == 0


def reader_job(guarded: Guarded, folder: Path) -> Job:
    """A process asks a table that a worker serves."""
    application = Application(SessionBroker(config=guarded.root()), folder, partitions=1).create_topics()
    counts = application.processors[0]
    producer = Producer(guarded.root())
    producer.produce(application.source, b"add ada 1", partition=0)
    assert producer.flush(POSITIVE_S) == 0

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        with running(application):
            application.worker().start().wait_ready(POSITIVE_S)
            application.wait_applied({0: 0}, POSITIVE_S)
            settings = Settings(app=application.name, kafka=dict(kafka))
            with BlockingTableClient(settings, [counts]) as tables:
                assert seen(tables.get(counts, "ada", partition=0, timeout_s=patience_s)) == 1
            application.workers.pop().kill()

    return Job(reader_grants(application.settings), work)


def replayer_job(guarded: Guarded, folder: Path) -> Job:
    """An operator verifies the tables of a worker that has skipped a batch, and replays one."""
    application = Application(
        SessionBroker(config=guarded.root()),
        folder,
        partitions=1,
        unreadable="quarantine",
        unpacked_batch_bytes=MIB,
    )
    application.create_topics()
    producer = Producer(guarded.root())
    producer.produce(application.source, b"add ada 1", partition=0)
    assert producer.flush(POSITIVE_S) == 0
    send_bomb(guarded, application.source)
    producer.produce(application.source, b"add ada 2", partition=0)
    assert producer.flush(POSITIVE_S) == 0
    with running(application):
        application.worker().start().wait_ready(POSITIVE_S)
        application.wait_applied({0: 2}, POSITIVE_S)
        application.workers.pop().kill()

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        settings = Settings(
            app=application.name,
            kafka=dict(kafka),
            unpacked_batch_bytes=MIB,
            request_timeout_s=min(patience_s, 30),
        )
        for processor in application.processors:
            assert verify(processor, settings, ReplayOptions(engine="local")).equal
        assert replay(application.processors[0], settings, ReplayOptions(engine="local")).records == 2

    return Job(replayer_grants(application.settings, application.processors), work)


def resetter_job(guarded: Guarded, folder: Path) -> Job:
    """An operator takes an application back to a time, and empties its outputs."""
    broker = SessionBroker(config=guarded.root())
    application = Application(broker, folder, partitions=1)
    words = Filter(name=f"{application.name}-words", source=Source(application.source, Bytes()), keep=bool)
    chain, between = [*application.processors, words], str(words.emits[0])
    root = replace(application.settings, data_dir=folder / "stores")

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        admin = Admin(root)
        admin.delete([root.reset_topic, application.out, between])
        create_topics(root, chain, partitions=1)
        producer = Producer(guarded.root())
        for topic in (application.out, between, application.source):
            producer.produce(topic, b"old", partition=0)
        assert producer.flush(POSITIVE_S) == 0
        group = Consumer({**guarded.root(), "group.id": application.name})
        group.commit(offsets=[TopicPartition(application.source, 0, 0)], asynchronous=False)
        group.close()
        settings = replace(root, kafka=dict(kafka), request_timeout_s=min(patience_s, 30))
        later_ms = system_clock.now_ms() + 60_000
        reset = ApplicationReset(settings, chain, empty_outputs=True, to_ms=later_ms)
        reset.check()
        for step in reset.steps():
            step.do()
        bounds = admin.offsets([(application.out, 0), (between, 0)])
        assert bounds == {(application.out, 0): (1, 1), (between, 0): (0, 0)}
        assert not admin.cluster([settings.reset_topic]).topics
        assert BrokerGroups(root, timeout_s=DEADLINE_S).committed(application.name) == {}

    return Job(resetter_grants(application.settings, chain), work)


def seen(answer: Answer[Any]) -> int:
    """Return how often the key was seen, 0 without a row."""
    return 0 if answer.value is None else int(answer.value.seen)


def claim_client_job(guarded: Guarded, folder: Path, *, balanced: bool = False) -> Job:
    """A member consumes, commits, and frees a partition that an administrator died over."""
    broker, run = SessionBroker(config=guarded.root()), uuid.uuid4().hex[:8]
    log = {"message.timestamp.type": "LogAppendTime"}
    topic = broker.create_topic("orders", partitions=1)
    coordination, groups = (
        broker.create_topic("marshal", config=log),
        broker.create_topic("groups", config=log),
    )
    resets = broker.create_topic("resets", config=log)
    producer = Producer(guarded.root())

    def settings(kafka: Mapping[str, str]) -> Settings:
        return Settings(kafka=dict(kafka), coordination_topic=coordination, groups_topic=groups)

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        producer.produce(topic, b"one", partition=0)
        now_s, dead = int(time.time()), f"{RESET_INSTANCE}{uuid.uuid4().hex[:8]}"
        place = coordination_partition(topic, 1)
        for frame in (
            ClaimingPartition(now_s, dead, "admin", run, topic, 0),
            Heartbeat(now_s, dead, "admin", run, topic, 0, 0),
        ):
            producer.produce(coordination, encode(frame), partition=place)
        assert producer.flush(POSITIVE_S) == 0
        asyncio.run(asyncio.wait_for(consume(kafka, patience_s), 3 * patience_s))

    async def consume(kafka: Mapping[str, str], patience_s: float) -> None:
        named: dict[str, Any] = {"balanced": True, "groups_topic": groups} if balanced else {}
        consumer = ClaimConsumer(
            settings(kafka),
            topics=[topic],
            group=run,
            client="billing-1",
            heartbeat_interval_s=1.0,
            resets_topic=resets,
            start_timeout_s=patience_s,
            **named,
        )
        async with consumer:
            message = await consumer.get(patience_s)
            assert message is not None, "nothing was delivered"
            message.commit()
            await consumer.flush(patience_s)
            await asyncio.to_thread(
                wait_for,
                "the offset to be Kafka's too",
                partial(offset_in_kafka, guarded, run, topic),
                patience_s,
            )

    return Job(claim_client_grants(settings({}), [topic], run, balanced=balanced, resets_topic=resets), work)


def committed(guarded: Guarded, topic: str) -> int:
    """Return how many offsets the topic has taken."""
    admin = Admin(Settings(kafka=guarded.root()))
    return sum(end for _, end in admin.offsets([(topic, 0)]).values())


def offset_in_kafka(guarded: Guarded, group: str, topic: str) -> bool:
    """Return whether the group has committed all of the topic."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    (found,) = guarded.admin.list_consumer_group_offsets([asked])[group].result(POSITIVE_S).topic_partitions
    return bool(found.offset == committed(guarded, topic))


def commits(consumer: Consumer, place: TopicPartition) -> bool:
    """Commit an offset; False while the group's coordinator is not there yet."""
    try:
        consumer.commit(offsets=[place], asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
            raise
        return False
    return True


def administrator_job(guarded: Guarded, folder: Path) -> Job:
    """An administrator makes an application's topics, mends one, has a batch skipped, and moves a claim
    group and a consumer group.
    """
    broker, run = SessionBroker(config=guarded.root()), uuid.uuid4().hex[:8]
    coordination = broker.create_topic("marshal", config={"message.timestamp.type": "LogAppendTime"})
    orders, resets = broker.create_topic("orders"), f"resets-{run}"
    application = Application(broker, folder, partitions=1)
    producer = Producer(guarded.root())
    for value in (b"one", b"two"):
        producer.produce(orders, value, partition=0)
    assert producer.flush(POSITIVE_S) == 0
    consumers = f"consumers-{run}"
    with closing(Consumer({**guarded.root(), "group.id": consumers})) as consumer:
        wait_for("a coordinator", partial(commits, consumer, TopicPartition(orders, 0, 1)), POSITIVE_S)

    def settings(kafka: Mapping[str, str]) -> Settings:
        return Settings(
            app=application.name,
            kafka=dict(kafka),
            coordination_topic=coordination,
            request_timeout_s=30,
            unpacked_batch_bytes=MIB,
        )

    grants = administrator_grants(
        settings({}), application.processors, {consumers: [orders]}, resets_topic=resets
    )

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        admin, mine = (
            Admin(settings(kafka), timeout_s=patience_s, connect_timeout_s=patience_s),
            settings(kafka),
        )
        made = {
            *application.processors[0].emits,
            application.source,
            *(p.changelog(application.name) for p in application.processors),
        }
        made |= {mine.quarantine_topic, mine.workers_topic, mine.skips_topic}
        broker.delete_topics([*made, resets])
        wait_for(
            "the topics to be gone",
            lambda: not ({*made, resets} & {*guarded.admin.list_topics(timeout=DEADLINE_S).topics}),
            POSITIVE_S,
        )
        create_topics(mine, application.processors, partitions=1, admin=admin)
        assert not check_topics(mine, application.processors, admin=admin)
        admin.apply([AlterConfig(topic=name, config={"retention.ms": "-1"}) for name in sorted(made)])
        send_bomb(guarded, application.source)
        skipping = SkipRequests(mine, [application.source], timeout_s=patience_s)
        skipping.ask(asyncio.run(skipping.plan(application.source, 0, 0, skipping.skips())), by="ada")
        assert [each.by for each in skipping.skips().all()] == ["ada"]
        now_s, place = int(time.time()), coordination_partition(orders, 1)
        for frame in (
            ClaimingPartition(now_s, "i1", "c1", run, orders, 0),
            ReleasingPartition(now_s, "i1", "c1", run, orders, 0, 1),
        ):
            producer.produce(coordination, encode(frame), partition=place, headers=[CAPABILITY_HEADER])
        assert producer.flush(POSITIVE_S) == 0
        with GroupAdmin(mine, resets_topic=resets) as groups:
            groups.pause(run, 5)
            groups.resume(run)
            (move,) = groups.reset_offsets(groups.plan_reset(run, Aim(Where.LATEST)), deadline_s=patience_s)
            assert move.new_offset == committed(guarded, orders)
            (position,) = groups.describe(run)
            assert position.current_offset == move.new_offset
            (move,) = groups.reset_offsets(
                groups.plan_reset(consumers, Aim(Where.EARLIEST)), deadline_s=patience_s
            )
            assert (move.current_offset, move.new_offset) == (1, 0)
            groups.reset_offsets(groups.plan_reset(consumers, Aim(Where.OFFSET, 1)), deadline_s=patience_s)

    return Job(grants, work)


def harvest_settings(outbox: FreshOutbox, kafka: Mapping[str, str], strategy: Strategy) -> HarvestSettings:
    return HarvestSettings(
        database=outbox.url,
        kafka=Settings(kafka=dict(kafka)),
        name=f"outbox-{uuid.uuid4().hex[:8]}",
        table=outbox.table,
        layout=outbox.layout.name,
        strategy=strategy,
        heartbeat_timeout_s=20.0,  # longer than a machine stalls, mostly
        retry_s=0.05,
    )


def harvester_job(guarded: Guarded, folder: Path, *, strategy: str) -> Job:
    """A harvester is elected, publishes the rows of the table, and answers a command; its topics are not
    there yet.
    """
    broker = SessionBroker(config=guarded.root())
    layout = "goharvest" if strategy == "mark" else "holdfast"
    outbox = FreshOutbox.make(f"sqlite:///{folder / 'service.db'}", layout)
    topic, named = broker.create_topic("orders"), harvest_settings(outbox, {}, Strategy(strategy))

    def settings(kafka: Mapping[str, str]) -> HarvestSettings:
        return replace(named, kafka=Settings(kafka=dict(kafka)))

    grants = harvester_grants(named, [topic])

    def work(kafka: Mapping[str, str], patience_s: float) -> None:
        own = {grant.name for grant in grants if grant.operation == "Create"}
        broker.delete_topics(sorted(own & {*guarded.admin.list_topics(timeout=DEADLINE_S).topics}))
        wait_for(
            "the topics to be gone",
            lambda: not (own & {*guarded.admin.list_topics(timeout=DEADLINE_S).topics}),
            POSITIVE_S,
        )
        before = committed(guarded, topic)
        answers = named.answers_topic
        for _ in range(2):  # the second finds in the answers those already sent, and the rest to send
            with outbox.engine().begin() as connection:
                outbox.writer().write(connection, topic, key=b"ada", value=b"one")
            with (
                refusals("DescribeConfigs") as refused,
                Harvester(settings(kafka)) as harvester,
                outbox.rows() as rows,
            ):
                assert refused == []
                wait_for(
                    "an empty table", lambda: rows.count() == 0, patience_s, lambda: str(harvester.stats)
                )
                assert tell(settings(guarded.root()), Verb.STATUS, 4 * patience_s), "nobody answered"
        assert committed(guarded, topic) > before
        assert committed(guarded, answers) == 2

    return Job(grants, work)


def test_the_doctor_names_the_right_that_a_worker_lacks(guarded: Guarded, tmp_path: Path) -> None:
    application = Application(SessionBroker(config=guarded.root()), tmp_path, partitions=1).create_topics()
    settings = replace(application.settings, kafka=guarded.principal("patient"))
    grants = worker_grants(settings, application.processors)
    emit = next(str(topic) for processor in application.processors for topic in processor.emits)
    lacking = Grant(Resource.TOPIC, emit, Operation.WRITE, "")
    guarded.grant(
        "patient",
        [*(g for g in grants if g.place != lacking.place), replace(lacking, operation=Operation.DESCRIBE)],
    )
    examined = LoadedApplication(settings=settings, processors=tuple(application.processors))
    found = [each for each in rights(examined, Admin(settings)) if each.fitness is not Fitness.OK]
    assert [(each.check, each.found) for each in found] == [
        ("right Write", f"not allowed on topic {emit}, where its folds emit to it")
    ]
    guarded.grant("patient", grants)
    wait_for(
        "all rights",
        lambda: all(e.fitness is Fitness.OK for e in rights(examined, Admin(settings))),
        POSITIVE_S,
    )


@pytest.mark.variants("mark")
@pytest.mark.parametrize("strategy", Strategy)
def test_rows_for_topics_that_may_only_be_seen_hold_up_no_others(
    guarded: Guarded, tmp_path: Path, strategy: Strategy
) -> None:
    """The broker lists such topics as any other, and refuses a transaction with a record for one whole. Each
    refusal costs a producer, and none of those outlives the harvester.
    """
    before = clients_alive()
    broker, user = SessionBroker(config=guarded.root()), f"user-{uuid.uuid4().hex[:8]}"
    kafka, orders, seen = guarded.principal(user), broker.create_topic("orders"), broker.create_topic("seen")
    outbox = FreshOutbox.make(
        f"sqlite:///{tmp_path / 'service.db'}", "goharvest" if strategy is Strategy.MARK else "holdfast"
    )
    settings = replace(harvest_settings(outbox, kafka, strategy), attempts=3)
    guarded.grant(
        user,
        [*harvester_grants(settings, [orders]), Grant(Resource.TOPIC, seen, Operation.DESCRIBE, "a test")],
    )
    others = {7: seen, 23: "__consumer_offsets", 41: seen}
    with outbox.engine().begin() as connection:
        for number in range(60):
            outbox.writer().write(
                connection, others.get(number, orders), key=f"k{number}", value=b"%d" % number
            )
    with Harvester(settings) as harvester, outbox.rows() as rows:
        wait_for("an empty table", lambda: rows.count() == 0, POSITIVE_S, lambda: str(harvester.stats))
        assert sum(each.fenced for each in harvester.stats) == 0
        assert sorted(each.row.topic for each in rows.quarantined(10)) == sorted(others.values())
    assert committed(guarded, orders) >= 57  # markers of transactions count
    wait_for(
        "the end of its clients", lambda: clients_alive() <= before, POSITIVE_S, lambda: str(clients_alive())
    )


@pytest.mark.parametrize("make_producer", [Producer, SlowProducer])
def test_a_progress_topic_that_may_not_be_written_to_is_reported_with_the_cure_and_no_harvester_is_fenced(
    guarded: Guarded, tmp_path: Path, capfd: pytest.CaptureFixture[str], make_producer: type[Producer]
) -> None:
    broker, user = SessionBroker(config=guarded.root()), f"user-{uuid.uuid4().hex[:8]}"
    kafka, orders = guarded.principal(user), broker.create_topic("orders")
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'service.db'}", "holdfast")
    settings = replace(harvest_settings(outbox, kafka, Strategy.FENCED), attempts=1)
    full = harvester_grants(settings, [orders])
    lacking = [
        each for each in full if (each.name, each.operation) != (settings.progress_topic, Operation.WRITE)
    ]
    assert len(lacking) == len(full) - 1
    guarded.grant(user, lacking)
    with outbox.engine().begin() as connection:
        for number in range(20):
            outbox.writer().write(connection, orders, key=f"k{number}", value=b"%d" % number)
    with Harvester(settings, clients={"make_producer": make_producer}) as harvester, outbox.rows() as rows:
        told = (
            f"{settings.progress_topic} takes nothing: it is not there, or this principal may not write to it"
        )
        wait_for(
            "the reason",
            lambda: any(told in each.last_error for each in harvester.stats),
            POSITIVE_S,
            lambda: str(harvester.stats),
        )
        assert sum(each.fenced for each in harvester.stats) == 0
        guarded.grant(user, full)
        wait_for("an empty table", lambda: rows.count() == 0, POSITIVE_S, lambda: str(harvester.stats))
        assert rows.quarantined(10) == []
    assert "|FATAL|" not in capfd.readouterr().err, "librdkafka's own lines bury what is told"


@contextmanager
def refusals(of: str = "authorization") -> Iterator[list[str]]:
    """Give the log lines about missing rights that the block causes."""
    found: list[str] = []

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if of in (text := record.getMessage()):
                found.append(text)

    listening, outbox = Listening(), logging.getLogger("holdfast.outbox")
    outbox.addHandler(listening)
    try:
        yield found
    finally:
        outbox.removeHandler(listening)


JOBS: dict[str, MakeJob] = {
    "worker": worker_job,
    "worker of agents": clerks_job,
    "reader": reader_job,
    "replayer": replayer_job,
    "resetter": resetter_job,
    "claim client": claim_client_job,
    "claim client, balanced": partial(claim_client_job, balanced=True),
    "administrator": administrator_job,
    "harvester, fenced": partial(harvester_job, strategy="fenced"),
    "harvester, mark": partial(harvester_job, strategy="mark"),
}


@pytest.mark.variants(
    "resetter",
    "replayer",
    "claim client, balanced",
    "reader",
    "worker of agents",
    "harvester, mark",
    "administrator",
)
@pytest.mark.parametrize("role", JOBS)
def test_a_role_does_its_job_with_exactly_its_grants(role: str, guarded: Guarded, tmp_path: Path) -> None:
    job, user = JOBS[role](guarded, tmp_path), f"user-{uuid.uuid4().hex[:8]}"
    kafka = guarded.principal(user)
    guarded.grant(user, job.grants)
    job.work(kafka, POSITIVE_S)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("role", JOBS)
def test_a_role_fails_without_any_one_of_its_grants(role: str, guarded: Guarded, tmp_path: Path) -> None:
    job, user = JOBS[role](guarded, tmp_path), f"user-{uuid.uuid4().hex[:8]}"
    kafka = guarded.principal(user)
    guarded.grant(user, job.grants)
    began_s = time.monotonic()
    job.work(kafka, POSITIVE_S)
    patience_s = max(LEAST_S, 3 * (time.monotonic() - began_s))
    needless = []
    for without in job.grants:
        guarded.grant(user, [grant for grant in job.grants if grant != without])
        try:
            job.work(kafka, patience_s)
        except (AssertionError, HoldfastError, TimeoutError):
            continue
        needless.append(without)
    assert not needless, f"{role} does its job without {needless}"
