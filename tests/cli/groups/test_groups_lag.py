"""`holdfast groups lag` on a cluster whose topics come and go."""

from __future__ import annotations

import signal
import urllib.request
from concurrent.futures import Future
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo  # type: ignore[attr-defined]

from holdfast.cli.groups import lag
from holdfast.cli.groups.lag_page import LagPage
from holdfast.cli.groups.partition_lag import PartitionLag
from holdfast.clients.topics.admin import Admin
from holdfast.clock import ManualClock, system_clock
from holdfast.config import Settings
from holdfast.core.broker_logs.lag import RECENT_MS, LagStanding
from holdfast.dev.ports import free_ports
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.errors import BrokerError, ConfigError, LostRecordsError, TopicError, UnreadableError
from holdfast.pipeline import topic
from tests.cli.worker.test_worker import command
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S
from tests.support.places import DOCS


@pytest.mark.long
def test_a_topic_that_is_deleted_during_the_look_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedKafka() as kafka:
        for topic in ("kept", "gone"):
            kafka.create_topic(topic)
            consumer = Consumer(kafka.client_config(**{"group.id": "billing"}))
            consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
            consumer.close()
        settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap}, request_timeout_s=300)
        assert [each.place for each in lag.lags(settings)] == [("gone", 0), ("kept", 0)]
        counts = Admin(settings).partition_counts()
        Admin(settings).delete(["gone"])
        monkeypatch.setattr(Admin, "partition_counts", lambda admin: counts)  # what it was a moment before
        assert [each.place for each in lag.lags(settings)] == [("kept", 0)]


def test_a_group_that_was_level_and_is_silent_since_has_stopped() -> None:
    """Each of its commits left no lag, so only its silence shows that it has died."""
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders")
        settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap}, request_timeout_s=300)
        producer = Producer(kafka.client_config())
        now_ms = system_clock.now_ms()
        later_ms = (
            now_ms + 1_800_000
        )  # of the last record: it is not two minutes old, however long this takes
        consumer = Consumer(kafka.client_config(**{"group.id": "billing"}))
        for number in range(1, 4):
            producer.produce("orders", b"x", timestamp=now_ms - 600_000 + number)
            assert producer.flush(DEADLINE_S) == 0
            consumer.commit(offsets=[TopicPartition("orders", 0, number)], asynchronous=False)
        consumer.close()
        producer.produce("orders", b"x", timestamp=later_ms)
        assert producer.flush(DEADLINE_S) == 0

        def standings(at_ms: int) -> list[LagStanding]:
            return [each.standing for each in lag.lags(settings, clock=ManualClock(now_ms=at_ms))]

        assert standings(later_ms + 1_000) == [LagStanding.OK], "a minute ago there was nothing to commit"
        assert standings(later_ms + RECENT_MS + 60_000) == [LagStanding.STOP]


def told(group: str, partition: int, standing: LagStanding, behind: int) -> PartitionLag:
    return PartitionLag(
        group=group,
        place=("t", partition),
        standing=standing,
        committed=0,
        end=behind,
        commits=1,
        committed_at_ms=0,
    )


def test_groups_that_need_attention_come_first() -> None:
    found = [
        told("a", 0, LagStanding.OK, 0),
        told("b", 0, LagStanding.WARN, 2),
        told("c", 0, LagStanding.OK, 1),
        told("c", 1, LagStanding.STALL, 7),
    ]
    assert [tuple(line.values()) for line in lag.by_group(found)] == [
        ("c", "ERR", "ERR", 2, 8, "t-1"),
        ("b", "WARN", "WARN", 1, 2, "t-0"),
        ("a", "OK", "OK", 1, 0, None),
    ]


# -- watching, and the metrics for Prometheus


def samples(page: LagPage) -> dict[str, float]:
    return {
        " ".join((sample.name, *sample.labels.values())): sample.value
        for family in page.collect()
        for sample in family.samples
    }


def test_the_page_of_metrics_is_the_one_that_prometheus_gets() -> None:
    page = LagPage([told("a", 0, LagStanding.STALL, 7)], 0)
    labels = {family.name: sorted(label for label in family.samples[0].labels) for family in page.collect()}
    wanted = "".join(
        f"| `{family.name}` | {family.type} | {', '.join(labels[family.name])} | {family.documentation} |\n"
        for family in page.collect()
    )
    found = (DOCS / "operating.md").read_text().partition("<!-- group-metrics -->\n")[2]
    assert (
        found.partition("<!-- end -->")[0]
        == f"| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n{wanted}"
    )


def test_a_group_is_shown_with_its_state_and_lag() -> None:
    found = [told("a", 0, LagStanding.OK, 0), told("a", 1, LagStanding.STALL, 7)]
    assert samples(LagPage(found, 1_500)) == {
        "holdfast_consumergroups_read_timestamp_seconds": 1.5,
        "holdfast_consumergroup_status a ERR": 1,
        "holdfast_consumergroup_standing a ERR": 1,
        "kafka_consumergroup_current_offset a t 0": 0,
        "kafka_consumergroup_current_offset a t 1": 0,
        "kafka_consumergroup_lag a t 0": 0,
        "kafka_consumergroup_lag a t 1": 7,
        "holdfast_consumergroup_partition_status a t 0 OK": 1,
        "holdfast_consumergroup_partition_status a t 1 STALL": 1,
        "holdfast_consumergroup_partition_standing a t 0 OK": 1,
        "holdfast_consumergroup_partition_standing a t 1 STALL": 1,
    }


def watched(monkeypatch: pytest.MonkeyPatch, *looks: list[PartitionLag] | Exception) -> lag.Watching:
    """Return a watch of a cluster that answers, or raises, so; a minute passes before each look."""
    clock, answers = ManualClock(now_ms=-60_000), iter(looks)

    def asked(settings: Settings, *, clock: ManualClock) -> list[PartitionLag]:
        clock.advance_ms(60_000)
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(lag, "lags", asked)
    return lag.Watching(Settings(), None, clock=clock)


@pytest.mark.parametrize(
    "passing",
    [
        BrokerError("broker away"),
        TopicError("topic __consumer_offsets: Broker: Unknown topic or partition"),
        LostRecordsError("records were deleted meanwhile"),
    ],
)
def test_watching_prints_changes_and_an_unreachable_cluster_once(
    passing: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watching = watched(
        monkeypatch,
        [told("a", 0, LagStanding.OK, 3)],
        [told("a", 0, LagStanding.OK, 3)],
        passing,
        passing,
        [told("a", 0, LagStanding.STOP, 9)],
        [told("a", 0, LagStanding.STOP, 9), told("b", 0, LagStanding.WARN, 1)],
    )
    pages = []
    for _ in range(5):
        watching.look()
        pages.append(samples(watching.page))
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        "1970-01-01T00:04:00Z  a  t-0  OK -> STOP, lag 9",
        "1970-01-01T00:05:00Z  b  t-0  OK -> WARN, lag 1",
    ]
    assert printed.err.splitlines() == [
        f"1970-01-01T00:02:00Z  not read: {passing}",
        "1970-01-01T00:04:00Z  read again",
    ]
    assert pages[0] == pages[1] == pages[2], "what was read last stays, with its time"
    assert pages[0]["holdfast_consumergroups_read_timestamp_seconds"] == 60
    assert pages[4]["holdfast_consumergroup_standing a ERR"] == 1


@pytest.mark.parametrize(
    "lasting", [ConfigError("kafka.sasl.password is refused"), UnreadableError("offset 7 cannot be read")]
)
def test_watching_ends_with_what_does_not_pass(lasting: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """`holdfast` prints such an error in a line, and ends."""
    watching = watched(monkeypatch, [], lasting)
    with pytest.raises(type(lasting)):
        watching.look()


def test_nothing_is_watched_that_cannot_be_read_at_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerError, match="away"):
        watched(monkeypatch, BrokerError("broker away"))


def test_a_leader_that_says_nothing_is_a_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a watch outlives it: a bare TimeoutError would be printed as an empty line."""
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders")
        settings = Settings(kafka={"bootstrap.servers": kafka.bootstrap}, request_timeout_s=300)
        monkeypatch.setattr(topic, "list_offsets", lambda *_, **__: {TopicPartition("orders", 0): Silent()})
        with topic.TopicLog(settings, "orders") as log, pytest.raises(BrokerError, match="no answer in time"):
            log.spans()


class Silent(Future[ListOffsetsResultInfo]):
    """The future of an answer that does not come, for callers that do not want to wait for that."""

    def result(self, timeout: float | None = None) -> ListOffsetsResultInfo:
        raise TimeoutError


def test_a_group_of_one_name_is_watched_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        lag, "lags", lambda *_, **__: [told("a", 0, LagStanding.OK, 0), told("b", 0, LagStanding.OK, 0)]
    )
    watching = lag.Watching(Settings(), "b")
    watching.look()
    assert {name.split()[1] for name in samples(watching.page) if " " in name} == {"b"}


@pytest.mark.variant
@pytest.mark.process
def test_the_command_serves_metrics_until_it_is_asked_to_end(tmp_path: Path) -> None:
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders")
        consumer = Consumer(kafka.client_config(**{"group.id": "billing"}))
        consumer.commit(offsets=[TopicPartition("orders", 0, 0)], asynchronous=False)
        consumer.close()
        port, elsewhere = free_ports(1)[0], tmp_path / "elsewhere"
        elsewhere.mkdir()
        words = ("groups", "lag", "--metrics-port", str(port), "--watch", "1")
        with command(tmp_path, *words, KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap) as exporter:
            page = wait_for("metrics", lambda: fetched(port), DEADLINE_S)
            assert 'holdfast_consumergroup_standing{consumergroup="billing",standing="OK"} 1.0' in page
            with command(elsewhere, *words, KAFKA_BOOTSTRAP_SERVERS=kafka.bootstrap) as second:
                assert second.wait(DEADLINE_S) == 2
            exporter.send_signal(signal.SIGTERM)
            assert exporter.wait(DEADLINE_S) == 0
    assert (elsewhere / "printed").read_text().splitlines()[-1] == (
        f"holdfast: --metrics-port {port} cannot be listened on: Address already in use; choose a free port"
    )


def fetched(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""
