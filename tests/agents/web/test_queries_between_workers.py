"""Tables asked across processes: an agent of one application asks the workers of another, whatever happens to
those in that time.

The workers of the claims application are shared by the tests; each test first brings them to the state it
speaks of.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove

from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import Directory, FixedDirectory
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key, route
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import Heartbeat, encode
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import TableClaims, WorkerClaims
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import AccessError, NotReadyError
from tests.agents.desk import Reply, Request, decode_reply, tallies
from tests.agents.fleet import Fleet, Writer, environment_of
from tests.clients.tables.tabling import deadline_after
from tests.support.harness import TIMES, UNDISTURBED, Worker, module_command, wait_for
from tests.support.patience import DEADLINE_S, SCENARIO_S

PARTITIONS = 4
TOKEN = "a-shared-secret"
TOPICS = [f"orders{number}" for number in range(12)]
PATIENT = {f"HOLDFAST_{name.upper()}": str(value) for name, value in {**TIMES, **UNDISTURBED}.items()}
"""No worker takes over from another before the group knows that it is gone."""
LEAST_CHANGED = 5

T = TypeVar("T")


class Desk:
    """The asking application: one worker of it, and what it was asked and has answered."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        broker, app = fleet.broker, fleet.settings.app.replace("fleet", "desk")
        self.requests, self.answers = f"{app}-requests", f"{app}-answers"
        self.settings = Settings(app=app, kafka=fleet.settings.kafka, standbys=0)
        self.tallies = tallies(self.answers)
        for topic, partitions in ((self.requests, 3), (self.answers, 2)):
            broker.create_topic(
                topic, partitions=partitions, config={"message.timestamp.type": "LogAppendTime"}, exact=True
            )
        create_topics(self.settings, [self.tallies])
        environment = {
            **environment_of(self.settings),
            **PATIENT,
            "DESK_ASKS": fleet.settings.app,
            "DESK_COORDINATION": fleet.settings.coordination_topic,
            "DESK_PARTITIONS": str(PARTITIONS),
            "DESK_TOKEN": TOKEN,
            "DESK_REQUESTS": self.requests,
            "DESK_ANSWERS": self.answers,
        }
        self.worker = Worker("desk", folder, environment, module_command("tests.agents.desk"))
        self._fleet, self._writer, self._ids = fleet, Writer(broker), itertools.count()
        self._consumer = Consumer(
            broker.client_config(
                **{
                    "group.id": app,
                    "enable.auto.commit": False,
                    "fetch.wait.max.ms": 20,
                    "auto.offset.reset": "earliest",
                }
            )
        )
        self._consumer.assign(
            [TopicPartition(self.answers, partition, OFFSET_BEGINNING) for partition in range(2)]
        )
        self._replies: dict[str, Reply] = {}
        self.read = 0

    def send(self, verb: str, key: str, **fields: Any) -> Request:
        """Write one request; requests about one key are served in order."""
        request = Request(id=f"r{next(self._ids)}", verb=verb, key=key, **fields)  # type: ignore[arg-type]
        self._writer.write(self.requests, msgspec.json.encode(request), key=key.encode())
        return request

    def replies(self, *requests: Request) -> list[Reply]:
        """Return the replies to *requests*, when all are there."""
        return wait_for(f"{len(requests)} replies", lambda: self._found(requests), DEADLINE_S, self._tails)

    def ask(self, verb: str, key: str, **fields: Any) -> Reply:
        return self.replies(self.send(verb, key, **fields))[0]

    def _found(self, requests: tuple[Request, ...]) -> list[Reply] | None:
        assert self.worker.running, f"the desk ended\n{self.worker.tail()}"
        for message in self._consumer.consume(1_000, 0.05):
            assert message.error() is None, message.error()
            reply = decode_reply(message.value() or b"")
            self._replies[reply.id] = reply
            self.read += 1
        return (
            [self._replies[each.id] for each in requests]
            if all(each.id in self._replies for each in requests)
            else None
        )

    def _tails(self) -> str:
        return f"{self.worker.tail()}\n{self._fleet.tails()}"

    def close(self) -> None:
        self.worker.close()
        self._consumer.close()


class Stage:
    """The claims application with two workers, and the desk."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        self.fleet = Fleet(
            broker,
            folder,
            partitions=PARTITIONS,
            module="tests.agents.services.rationalizing",
            standbys=1,
            web_token=TOKEN,
        ).create_topics()
        self.claims: Processor[Any, Any] = self.fleet.processors[0]
        self.fleet.environment |= PATIENT
        self.first, self.second = (
            self.fleet.worker(name, HOLDFAST_INSTANCE_ID=name) for name in ("first", "second")
        )
        self.desk, self.writer = Desk(self.fleet, folder), Writer(broker)
        self._numbers = itertools.count(1)
        self.held = folder / "held"
        """While this file is there, a worker that knows of it restores nothing."""

    def expel(self, worker: Worker) -> None:
        """Have the group know that a killed worker is gone, as it would find out after a session."""
        group, client = self.fleet.settings.app, AdminClient(self.fleet.broker.client_config())
        described = client.describe_consumer_groups([group], request_timeout=DEADLINE_S)[group]
        members = described.result(DEADLINE_S).members
        (name,) = [
            each.group_instance_id for each in members if each.group_instance_id.startswith(worker.name)
        ]
        with closing(KafkaAdminClient(bootstrap_servers=self.fleet.broker.bootstrap)) as admin:
            told = admin.remove_group_members(group, [MemberToRemove(group_instance_id=name)])
        assert [each.errno for each in told.values()] == [0], told

    def both(self) -> None:
        """Have both workers run, ready, with partitions of their own."""
        for worker in (self.first, self.second):
            if not worker.running:
                worker.start()
        self.fleet.wait_spread(self.first, self.second)

    def beat(self, topic: str, group: str = "g") -> Request:
        """Have the desk write a heartbeat that was not written before, and read it back."""
        number = next(self._numbers)
        key = claim_key(group, topic, 0)
        return self.desk.send(
            "heartbeat", key, client_id=f"of-{topic}", time_s=int(time.time()), offset=number
        )

    def check(self, requests: list[Request]) -> None:
        """Each reply shows what its request wrote, as of that very record or a later one."""
        for request, reply in zip(requests, self.desk.replies(*requests), strict=True):
            assert reply.error == "", f"{request}: {reply.error}: {reply.message}\n{self.fleet.tails()}"
            assert (reply.client_id, reply.offset) == (
                request.client_id,
                request.offset,
            ), f"{request}: {reply}"
            assert reply.written is not None
            assert (reply.partition, reply.role) == (reply.written[0], "active")
            assert reply.as_of_offset >= reply.written[1]

    def asked_throughout(
        self, condition: Callable[[], bool], deadline_s: float = SCENARIO_S
    ) -> list[Request]:
        """Have the desk write and read without a pause until *condition* holds, and a little longer."""
        sent: list[Request] = []
        until_s, longer = time.monotonic() + deadline_s, LEAST_CHANGED
        while longer:
            assert time.monotonic() < until_s, (
                f"not within {deadline_s:.0f} s, after {len(sent)} answers\n{self.fleet.tails()}"
            )
            if condition():
                longer -= 1
            burst = [self.beat(topic) for topic in TOPICS]
            self.desk.replies(*burst)
            sent += burst
        return sent

    @asynccontextmanager
    async def client(self, directory: Directory | None = None, **changes: Any) -> AsyncIterator[TableClient]:
        settings = replace(self.fleet.settings, **changes)
        async with TableClient(settings, [self.claims], directory=directory) as tables:
            yield tables

    def answered(self, worker: Worker, outcome: str) -> float:
        """Return how many questions about rows *worker* has answered with *outcome*."""
        queries = worker.metric("holdfast_queries_total")
        return sum(
            count
            for labels, count in queries.items()
            if f'outcome="{outcome}"' in labels and 'verb="get_many"' in labels
        )


@pytest.fixture(scope="module")
def stage(broker: SessionBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(broker, tmp_path_factory.mktemp("stage"))
    try:
        stage.first.start()
        stage.desk.worker.start()
        stage.first.wait_ready()
        stage.desk.worker.wait_ready()
        yield stage
    finally:
        stage.desk.close()
        stage.fleet.close()


def run(scenario: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(scenario, SCENARIO_S)

    return asyncio.run(bounded())


def fetch(worker: Worker, path: str, token: str | None) -> tuple[int, str]:
    """Return (status, body) of a worker's answer to a request with *token*."""
    asked = urllib.request.Request(
        worker.url + path, headers={} if token is None else {"Authorization": f"Bearer {token}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# -- in the order in which the workers come and go


def test_an_agent_reads_its_own_writes_from_another_application_while_a_worker_joins(stage: Stage) -> None:
    def rebalances() -> float:
        return sum(stage.first.metric("holdfast_rebalances_total").values())

    before = rebalances()
    stage.second.start()

    def spread() -> bool:
        return (
            stage.first.ready and stage.second.ready and bool(stage.second.applied()) and stage.second.running
        )

    requests = stage.asked_throughout(spread)
    stage.check(requests)
    assert rebalances() > before
    assert len(stage.first.applied()) < PARTITIONS, "partitions have moved to the second worker"
    print(f"{len(requests)} writes read back while a worker joined")


def test_each_partition_is_answered_by_its_owner_alone(stage: Stage) -> None:
    stage.both()
    stage.check([stage.beat(topic) for topic in TOPICS])

    async def scenario() -> Counter[Worker]:
        owners: Counter[Worker] = Counter()
        async with stage.client() as tables:
            for topic in TOPICS:
                key = claim_key("g", topic, 0)
                owner = stage.fleet.owner("claims", route(key, PARTITIONS) or 0)
                counts = {worker: stage.answered(worker, "ok") for worker in stage.fleet.live}
                answer = await tables.get(stage.claims, key, timeout_s=DEADLINE_S)
                assert isinstance(answer.value, Claim)
                assert answer.value.client_id == f"of-{topic}"
                answered = {
                    worker: stage.answered(worker, "ok") > before for worker, before in counts.items()
                }
                assert answered == {worker: worker is owner for worker in counts}
                owners[owner] += 1
        return owners

    assert len(run(scenario())) == 2, "keys of both workers were asked for"


def test_a_client_that_believes_in_the_former_owner_is_redirected_once(stage: Stage) -> None:
    stage.both()
    key = claim_key("g", TOPICS[0], 0)
    owner = stage.fleet.owner("claims", route(key, PARTITIONS) or 0)
    other = stage.second if owner is stage.first else stage.first
    everything = TableClaims(version=1, partitions=PARTITIONS, active=list(range(PARTITIONS)))
    former = FixedDirectory(
        [WorkerClaims(url=other.url, generation=1, started_ms=0, at_ms=0, tables={"claims": everything})]
    )

    async def scenario() -> None:
        async with stage.client(former) as tables:
            answer = await tables.get(stage.claims, key, timeout_s=DEADLINE_S)
            assert isinstance(answer.value, Claim)

    moved, answered = stage.answered(other, "moved"), stage.answered(owner, "ok")
    run(scenario())
    assert (stage.answered(other, "moved") - moved, stage.answered(owner, "ok") - answered) == (1, 1)


def test_a_scan_over_both_workers_gives_every_key_once(stage: Stage) -> None:
    stage.both()
    wanted = sorted(claim_key("scanned", f"topic{number}", 0) for number in range(90))
    stage.check([stage.beat(f"topic{number}", "scanned") for number in range(90)])
    assert len({route(key, PARTITIONS) for key in wanted}) == PARTITIONS
    assert sorted(stage.desk.ask("scan", "scanned/").keys) == wanted

    async def scenario() -> list[str]:
        async with stage.client() as tables:
            found = tables.scan(stage.claims, "scanned/topic1", page_rows=3, timeout_s=DEADLINE_S)
            return [answer.key async for answer in found]

    assert sorted(run(scenario())) == [key for key in wanted if key.startswith("scanned/topic1")]


def test_a_query_without_an_answer_gets_an_error_of_its_type(stage: Stage) -> None:
    stage.both()
    key = claim_key("g", TOPICS[0], 0)
    partition, end = stage.desk.ask(
        "heartbeat", key, client_id="c", time_s=int(time.time()), offset=1
    ).written or (0, 0)

    def refused(error: str, **fields: Any) -> Reply:
        """Return the reply with *error*; on a slow machine another may come first in so short a time."""

        def asked() -> Reply | None:
            reply = stage.desk.ask("get", key, timeout_s=1.0, **fields)
            return reply if reply.error == error else None

        return wait_for(error, asked, DEADLINE_S)

    told = {
        "beyond": refused("OffsetTimeoutError", at_least=(partition, end + 1_000)),
        "version": stage.desk.ask("get", key, version=2, timeout_s=DEADLINE_S),
        "absent": refused("NotReadyError", application=f"{stage.fleet.settings.app}-nowhere"),
        "missing": stage.desk.ask("get", claim_key("g", "never", 9)),
    }
    assert told["beyond"].error == "OffsetTimeoutError"
    assert f"at offset {end}, not yet {end + 1_000}" in told["beyond"].message
    assert told["version"].error == "NoSuchTableError"
    assert "in version 1, not 2" in told["version"].message
    assert told["absent"].error == "NotReadyError"
    assert "has announced table claims" in told["absent"].message
    assert (told["missing"].error, told["missing"].client_id, told["missing"].offset) == (
        "",
        "",
        None,
    ), "no row is an answer"

    async def without_token() -> None:
        async with stage.client(web_token=None) as tables:
            await tables.get(stage.claims, key, timeout_s=DEADLINE_S)

    with pytest.raises(AccessError, match="web_token"):
        run(without_token())


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/tables", None, 401),
        ("/tables", "wrong", 403),
        ("/tables", TOKEN, 200),
        ("/tables/claims/0/rows/g%2Forders0%2F0", None, 401),
        ("/tables/claims/0/scan", None, 401),
        ("/health/live", None, 200),
        ("/health/ready", None, 200),
        ("/metrics", None, 200),
    ],
)
def test_tables_are_not_listed_without_the_token(
    stage: Stage, path: str, token: str | None, status: int
) -> None:
    stage.both()
    got, body = fetch(stage.first, path, token)
    assert got == status
    assert status == 200 or "of-orders" not in body


def test_reads_stay_right_while_an_owner_is_killed_and_a_standby_answers(stage: Stage) -> None:
    stage.both()
    key = claim_key("g", "kept", 0)
    partition = route(key, PARTITIONS) or 0
    owner = stage.fleet.owner("claims", partition)
    heir = stage.second if owner is stage.first else stage.first
    reply = stage.desk.ask("heartbeat", key, client_id="before", time_s=int(time.time()), offset=5)
    assert reply.written is not None
    end = reply.written[1]
    wait_for(
        "a standby abreast",
        lambda: heir.applied("standby").get(("claims", partition)) == end,
        DEADLINE_S,
        heir.tail,
    )
    wait_for(
        "a standby that knows its age",
        lambda: heir.metric("holdfast_standby_age_seconds"),
        DEADLINE_S,
        heir.tail,
    )
    owner.kill()

    async def meanwhile() -> tuple[int, int]:
        async with stage.client() as tables:
            stale = await tables.get(
                stage.claims,
                key,
                at_least=(partition, end),
                max_staleness=timedelta(seconds=600),
                timeout_s=DEADLINE_S,
            )
            assert isinstance(stale.value, Claim)
            assert (stale.role, stale.as_of_offset, stale.value.client_id) == ("standby", end, "before")
            with deadline_after(), pytest.raises(NotReadyError, match=owner.url):
                await tables.get(stage.claims, key, timeout_s=DEADLINE_S)
            # Records that are not folded yet make a standby stale by as many, once it knows of them.
            topic, beat = (
                stage.fleet.settings.coordination_topic,
                Heartbeat(int(time.time()), "i1", "before", "g", "kept", 0, 6),
            )
            places = [
                stage.writer.write(
                    topic, encode(msgspec.structs.replace(beat, current_offset=at)), partition=partition
                )
                for at in (6, 7, 8)
            ]
            path = f"/tables/claims/{partition}/rows/{quote(key, safe='')}?stale-ok="
            wait_for(
                "a standby too far behind by 2, and not by 3",
                lambda: (fetch(heir, f"{path}2", TOKEN)[0], fetch(heir, f"{path}3", TOKEN)[0]) == (421, 200),
                DEADLINE_S,
                heir.tail,
            )
            with deadline_after(), pytest.raises(NotReadyError):
                await tables.get(stage.claims, key, max_staleness=2, timeout_s=DEADLINE_S)
            behind = await tables.get(stage.claims, key, max_staleness=3, timeout_s=DEADLINE_S)
            assert isinstance(behind.value, Claim)
            assert (behind.role, behind.as_of_offset, behind.value.current_offset) == ("standby", end, 5)
            return places[-1]

    last = run(meanwhile())
    stage.expel(owner)
    began_s = time.monotonic()
    requests = stage.asked_throughout(lambda: len(heir.applied()) == PARTITIONS and heir.ready)
    print(
        f"first answers of the new owners {time.monotonic() - began_s:.1f} s after the group knew,"
        f" {len(requests)} in all"
    )
    stage.check(requests)
    reply = stage.desk.ask("get", key, at_least=last)
    assert (reply.role, reply.offset) == ("active", 8), reply


def test_a_restoring_worker_names_the_cause_and_its_partitions_are_not_ready(stage: Stage) -> None:
    idle = next((worker for worker in (stage.first, stage.second) if not worker.running), None)
    if idle is None:
        idle = stage.second
        idle.kill()
        stage.expel(idle)
    idle.wipe()
    causes: set[str] = set()
    refusals: set[str] = set()
    keys = [claim_key("g", topic, 0) for topic in TOPICS]
    stage.held.touch()

    def is_told() -> bool:
        return "restoring" in causes and any("not serving here: restoring" in each for each in refusals)

    async def watch() -> None:
        async with stage.client() as tables:
            await tables.get_many(stage.claims, keys, timeout_s=DEADLINE_S)
            idle.start(CHAOS_RESTORE_HELD=str(stage.held))
            until_s = time.monotonic() + DEADLINE_S
            while True:
                assert idle.running, idle.tail()
                assert time.monotonic() < until_s, idle.tail()
                status, body = idle.ask("/health/ready")
                told: dict[str, Any] = msgspec.json.decode(body) if status else {}
                assert status in (0, 200, 503)
                assert (status == 200) == (told.get("status") == "ready")
                if status == 200:
                    return
                causes.add(str(told.get("cause", "")))
                try:
                    with deadline_after(1):
                        await tables.get_many(stage.claims, keys, timeout_s=DEADLINE_S)
                except NotReadyError as error:
                    refusals.add(str(error))
                if is_told():
                    stage.held.unlink(missing_ok=True)

    run(watch())
    assert is_told(), (causes, refusals)
    stage.both()
    stage.check([stage.beat(topic) for topic in TOPICS])


def test_the_desks_own_processor_has_counted_every_answer(stage: Stage) -> None:
    desk = stage.desk
    desk.replies(*[stage.beat(topic) for topic in TOPICS])

    async def counted() -> int:
        async with TableClient(desk.settings, [desk.tallies]) as tables:
            found = tables.scan(desk.tallies, timeout_s=DEADLINE_S)
            return sum([answer.value.answers async for answer in found])

    wait_for(
        f"{desk.read} answers counted", lambda: run(counted()) == desk.read, DEADLINE_S, desk.worker.tail
    )
