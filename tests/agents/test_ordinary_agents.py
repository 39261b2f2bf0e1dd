"""Ordinary Faust agents next to processors on a real broker: their records at least once, by committed
offsets, whatever is killed.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from holdfast.clients.quarantine.records import Quarantine
from holdfast.dev.fixtures import SessionBroker
from holdfast.kafka.reading.skip_log import read_skips
from tests.agents.fleet import Writer
from tests.agents.jobs import KEEP, Done
from tests.kafka.test_bombs import BOMB_BYTES, send
from tests.support.harness import UNDISTURBED, Application, Worker, running, wait_for
from tests.support.patience import DEADLINE_S
from tests.support.proof import prove

PARTITIONS = 3
decode = msgspec.json.Decoder(Done).decode


class Jobs(Application):
    """The counting application with the agent next to it."""

    def __init__(
        self,
        broker: SessionBroker,
        folder: Path,
        *,
        instance_id: str = "",
        unreadable: str = "halt",
        make_jobs: bool = True,
        **settings: float,
    ) -> None:
        super().__init__(
            broker,
            folder,
            partitions=PARTITIONS,
            module="tests.agents.jobs",
            instance_id=instance_id,
            unreadable=unreadable,
            **settings,  # type: ignore[arg-type]
        )
        self.jobs, self.done = f"{self.name}-jobs", f"{self.name}-done"
        self._environment |= {"JOBS": self.jobs, "JOBS_DONE": self.done, "JOBS_RUN": "none"}
        self.create_topics()
        broker.create_topic(self.done, partitions=1, exact=True)
        if make_jobs:
            broker.create_topic(self.jobs, partitions=PARTITIONS, exact=True)
        self._broker, self._writer, self._admin = broker, Writer(broker), AdminClient(broker.client_config())
        self._consumer = Consumer(
            broker.client_config(**{"group.id": "jobs", "enable.auto.commit": False, "fetch.wait.max.ms": 20})
        )
        self._consumer.assign([TopicPartition(self.done, 0, OFFSET_BEGINNING)])
        self.deliveries: list[Done] = []

    def write(self, count: int, *, partitions: range = range(PARTITIONS), value: bytes = b"job") -> None:
        """Append *count* jobs to each of *partitions*."""
        self._writer.write_all(
            self.jobs, [(value, None, partition, 0) for _ in range(count) for partition in partitions]
        )

    def transact(self, count: int) -> None:
        """Append *count* jobs to each partition, and as many records to each of the processors' source, in
        one transaction.
        """
        producer = Producer(self._broker.client_config(**{"transactional.id": f"{self.name}-writer"}))
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            for _ in range(count):
                producer.produce(self.jobs, b"job", partition=partition)
                producer.produce(self.source, b"add seen 1", partition=partition)
        producer.commit_transaction(DEADLINE_S)

    def lag(self, topic: str) -> int:
        """Return the group's lag as tools count it: from its committed offsets to the ends of the log."""
        ends = {
            number: self._consumer.get_watermark_offsets(TopicPartition(topic, number), DEADLINE_S)[1]
            for number in range(PARTITIONS)
        }
        return sum(ends.values()) - sum(self.committed(topic).values())

    def read(self) -> list[Done]:
        """Return every delivery noted so far."""
        for message in self._consumer.consume(10_000, 0.05):
            assert message.error() is None, message.error()
            self.deliveries.append(decode(message.value() or b""))
        return self.deliveries

    def wait_noted(self, places: int) -> None:
        """Return when so many different jobs have been noted."""

        def condition() -> bool:
            assert self.live, f"no worker runs\n{self.tails()}"
            return len({(each.partition, each.offset) for each in self.read()}) >= places

        wait_for(
            f"{places} jobs done",
            condition,
            DEADLINE_S,
            lambda: f"{len(self.deliveries)} noted\n{self.tails()}",
        )

    def committed(self, topic: str = "") -> dict[int, int]:
        """Return the group's committed offset of each partition of a topic, the jobs' unless named; 0 for
        none.
        """
        places = [TopicPartition(topic or self.jobs, partition) for partition in range(PARTITIONS)]
        asked = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self.settings.app, places)]
        )
        found = asked[self.settings.app].result(DEADLINE_S).topic_partitions
        return {place.partition: max(0, place.offset) for place in found}

    def wait_committed(self, wanted: dict[int, int]) -> None:
        wait_for(
            f"offsets {wanted} committed",
            lambda: self.committed() == wanted,
            DEADLINE_S,
            lambda: f"{self.committed()}\n{self.tails()}",
        )

    def of_run(self, run: str) -> dict[int, list[int]]:
        """Return the offsets delivered to one process, by partition, in the order of delivery."""
        out: dict[int, list[int]] = defaultdict(list)
        for each in self.read():
            if each.run == run:
                out[each.partition].append(each.offset)
        return out

    def close(self) -> None:
        super().close()
        self._consumer.close()


@pytest.fixture
def jobs(broker: SessionBroker, tmp_path: Path) -> Iterator[Jobs]:
    # A static member, so that each restart has its partitions back at once.
    with running(Jobs(broker, tmp_path, instance_id="only")) as application:
        assert isinstance(application, Jobs)
        yield application


@pytest.fixture
def undisturbed(broker: SessionBroker, tmp_path: Path) -> Iterator[Jobs]:
    """Give the same whose worker keeps what it has, however long it is held up: what it has not committed is
    not delivered again.
    """
    with running(Jobs(broker, tmp_path, instance_id="only", **UNDISTURBED)) as application:  # type: ignore[arg-type]
        assert isinstance(application, Jobs)
        yield application


@pytest.fixture
def two(broker: SessionBroker, tmp_path: Path) -> Iterator[Jobs]:
    with running(Jobs(broker, tmp_path)) as application:
        assert isinstance(application, Jobs)
        yield application


def _waits_for(worker: Worker, topic: str) -> bool:
    status, said = worker.ask("/health/ready")
    return status == 503 and f"topic {topic} does not exist" in str(said)


def check_at_least_once(app: Jobs, count: int) -> None:
    """Every job was delivered, for the first time in the order of its partition's log."""
    first: dict[int, list[int]] = defaultdict(list)
    seen: set[tuple[int, int]] = set()
    for each in app.read():
        if (each.partition, each.offset) not in seen:
            seen.add((each.partition, each.offset))
            first[each.partition].append(each.offset)
    assert dict(first) == {partition: list(range(count)) for partition in range(PARTITIONS)}


def test_an_agent_resumes_at_its_committed_offsets_after_sigkill_and_leaves_processors_alone(
    undisturbed: Jobs,
) -> None:
    jobs, count = undisturbed, 300
    worker = jobs.worker()
    load = jobs.load(rate=800, seed=7)
    committed = dict.fromkeys(range(PARTITIONS), 0)
    jobs.write(count)
    for run, noted in enumerate((250, 600, PARTITIONS * count)):
        worker.start(JOBS_RUN=f"run{run}")
        jobs.wait_noted(noted)
        if noted < PARTITIONS * count:
            worker.kill()
        for partition, offsets in jobs.of_run(f"run{run}").items():
            begin = committed[partition]
            assert offsets == list(range(begin, begin + len(offsets))), (
                f"run {run} of partition {partition} did not go on at {begin}"
            )
        committed = jobs.committed()
    check_at_least_once(jobs, count)
    jobs.wait_committed(dict.fromkeys(range(PARTITIONS), count))
    print(f"{len(jobs.deliveries)} deliveries of {PARTITIONS * count} jobs over two kills")
    prove(jobs, load.stop())


@pytest.mark.variant
def test_offsets_are_committed_up_to_the_first_job_that_is_not_acked(jobs: Jobs) -> None:
    worker = jobs.worker().start(JOBS_RUN="first")
    jobs.write(10)
    jobs.write(1, partitions=range(1, 2), value=KEEP)
    jobs.write(10)
    jobs.wait_noted(PARTITIONS * 20 + 1)
    jobs.wait_committed({0: 20, 1: 10, 2: 20})
    jobs.write(1)  # the next commit shows that the one before was not just early
    jobs.wait_committed({0: 21, 1: 10, 2: 21})
    worker.stop()  # which waits for the agent, but not for ever
    assert worker.said(rf"delivered again: \['{jobs.jobs}/1/10'\]")
    assert jobs.committed() == {0: 21, 1: 10, 2: 21}
    worker.start(JOBS_RUN="second", JOBS_ACK_ALL="1")
    jobs.wait_committed({0: 21, 1: 22, 2: 21})
    assert dict(jobs.of_run("second")) == {1: list(range(10, 22))}, (
        "from the first that was not acked, and nothing else again"
    )
    worker.stop()


@pytest.mark.variant
def test_a_worker_ends_although_the_group_rebalances_in_that_time(
    broker: SessionBroker, tmp_path: Path
) -> None:
    """Faust's own answer to that closes the consumer by which it then commits, and waits for ever."""
    # It ends as long as that after SIGTERM, since its agent keeps a job.
    with running(Jobs(broker, tmp_path, session_timeout_s=10)) as jobs:
        assert isinstance(jobs, Jobs)
        ending, other = jobs.worker().start(JOBS_RUN="ending"), jobs.worker().start(JOBS_RUN="other")
        wait_for("both at work", lambda: all(each.ready for each in (ending, other)), DEADLINE_S, jobs.tails)
        jobs.write(1)
        jobs.wait_noted(PARTITIONS)
        partition = next(iter(jobs.of_run("ending")))
        jobs.write(1, partitions=range(partition, partition + 1), value=KEEP)
        jobs.wait_noted(PARTITIONS + 1)
        ending.signal(signal.SIGTERM)
        ending.wait_said("Wait for streams", DEADLINE_S)
        other.stop()  # so that the one that ends is given all partitions
        assert ending.wait_exit(DEADLINE_S) == 0, ending.tail()
        assert ending.said(rf"delivered again: \['{jobs.jobs}/{partition}/1'\]")
        assert ending.said("LeaveGroup request succeeded")


def test_no_lag_is_left_after_a_marker(jobs: Jobs) -> None:
    """Tools that know nothing of markers count to the log's end."""
    jobs.worker().start()
    for round_ in (1, 2):
        jobs.transact(3)
        jobs.wait_noted(round_ * 3 * PARTITIONS)
        jobs.wait_committed(dict.fromkeys(range(PARTITIONS), round_ * 4))
        for topic in (jobs.jobs, jobs.source):
            wait_for(
                f"no lag of {topic}",
                partial(lambda topic: not jobs.lag(topic), topic),
                DEADLINE_S,
                jobs.tails,
            )


@pytest.mark.variant
def test_jobs_are_done_at_least_once_while_workers_come_and_go(two: Jobs) -> None:
    count = 200
    first, second = two.worker(), two.worker()
    load = two.load(rate=500, seed=8)
    two.write(count)
    first.start(JOBS_RUN="a")
    two.wait_noted(100)
    second.start(JOBS_RUN="b")
    wait_for(
        "both work",
        lambda: first.ready and second.ready and first.applied() and second.applied(),
        DEADLINE_S,
        two.tails,
    )
    two.write(count)
    two.wait_noted(PARTITIONS * count + 150)
    assert two.of_run("a")
    assert two.of_run("b"), "both had jobs"
    first.kill()
    two.wait_noted(2 * PARTITIONS * count)
    check_at_least_once(two, 2 * count)
    prove(two, load.stop())


@pytest.mark.variant
def test_a_batch_of_theirs_that_cannot_be_read_is_skipped_and_noted_and_those_after_it_are_done(
    broker: SessionBroker, tmp_path: Path
) -> None:
    jobs = Jobs(broker, tmp_path, unreadable="quarantine")
    with running(jobs):
        jobs.write(1)
        send(broker, jobs.jobs, "zstd", [bytes(BOMB_BYTES)])
        jobs.write(1)
        worker = jobs.worker().start()
        jobs.wait_noted(2 * PARTITIONS)
        jobs.wait_committed({0: 3, 1: 2, 2: 2})
        assert read_skips(jobs.settings).of_topic(jobs.jobs) == {0: ((1, 1),)}
        (noted,) = Quarantine(jobs.settings).records(lambda each: each.stage == "fetch")
        assert (noted.place, noted.processor) == (f"{jobs.jobs}/0/1", jobs.name)
        worker.kill()
        jobs.write(1)
        jobs.worker().start()
        jobs.wait_noted(3 * PARTITIONS)
        assert len(read_skips(jobs.settings)) == 1


@pytest.mark.variant
def test_a_topic_that_is_made_after_its_agent_is_taken_up_and_workers_are_unready_until_then(
    broker: SessionBroker, tmp_path: Path
) -> None:
    jobs = Jobs(broker, tmp_path, make_jobs=False)
    with running(jobs):
        workers = [jobs.worker().start() for _ in range(2)]
        for worker in workers:
            wait_for(
                f"{worker.name} waits for the topic",
                partial(_waits_for, worker, jobs.jobs),
                DEADLINE_S,
                jobs.tails,
            )
        load = jobs.load(rate=200, seed=9)  # processors do not wait for it
        wait_for("processors fold", lambda: any(each.applied() for each in workers), DEADLINE_S, jobs.tails)
        broker.create_topic(jobs.jobs, partitions=PARTITIONS, exact=True)
        jobs.write(5)
        jobs.wait_noted(PARTITIONS * 5)
        wait_for("both are ready", lambda: all(each.ready for each in workers), DEADLINE_S, jobs.tails)
        check_at_least_once(jobs, 5)
        prove(jobs, load.stop())
