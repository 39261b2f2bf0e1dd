"""The bookkeeper on real workers: registry, books and clean topics through SIGKILL, equal to a replay by
hash; and who may send.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from holdfast.agents.services.all import processors
from holdfast.clients.producers.names import NameHolder
from holdfast.clients.producers.sequenced import Sent, SequencedProducer
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.producers.cleaning import decode_verdict
from holdfast.core.producers.ledger import Book, Judgement, book_key, producer_of_key
from holdfast.core.producers.registry import Registration, name_key
from holdfast.core.producers.stamps import Stamp, read_stamp, stamp_headers
from holdfast.dev.fixtures import SessionBroker
from holdfast.errors import BrokerError, ConfigError, FencedError, TopicError
from tests.agents.fleet import Fleet
from tests.support.harness import wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S
from tests.support.proof import last_offsets, logged_state, model, read_topic, sha

PARTITIONS = 2


class Bookkeeping(Fleet):
    """A fleet with the registry, the books of one topic and a clean copy of another."""

    def __init__(self, broker: SessionBroker, folder: Path) -> None:
        name = ending()
        self.orders, self.raw, self.clean, self.names = (
            f"{name}-{each}" for each in ("orders", "raw", "clean", "names")
        )
        super().__init__(
            broker,
            folder,
            app="books",
            partitions=PARTITIONS,
            declare=processors,
            standbys=1,
            registry=True,
            producers_topic=self.names,
            books=self.orders,
            dedupe=f"{self.raw}:{self.clean}",
        )

    def processor(self, prefix: str) -> Processor[Any, Any]:
        (found,) = [each for each in self.processors if each.name.startswith(prefix)]
        return found

    def wait_folded(self) -> None:
        """Return when every table is at the end of its source."""
        for processor in self.processors:
            ends = last_offsets(read_topic(self.broker, processor.source))

            def condition(processor: Processor[Any, Any] = processor, ends: dict[int, int] = ends) -> bool:
                at = {place: applied for worker in self.live for place, applied in worker.applied().items()}
                return all(at.get((processor.name, partition)) == last for partition, last in ends.items())

            wait_for(f"{processor.name} at {ends}", condition, DEADLINE_S, self.tails)


@pytest.fixture(scope="module")
def fleet(broker: SessionBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bookkeeping]:
    made = Bookkeeping(broker, tmp_path_factory.mktemp("books"))
    made.create_topics()
    try:
        first, second = made.worker().start(), made.worker().start()
        made.wait_spread(first, second)
        yield made
    finally:
        made.close()


def misbehaviour(seed: int, producers: int, records: int) -> Iterator[tuple[int, Stamp, bytes]]:
    """Yield (partition, stamp, value) of producers that repeat, skip, come late and do not die; a number
    has one value for ever.
    """
    chance = random.Random(seed)
    at = {(name, partition): (1, 0) for name in range(producers) for partition in range(PARTITIONS)}
    for _ in range(records):
        name, partition = place = chance.choice(list(at))
        epoch, following = at[place]
        match chance.choices(["next", "again", "skip", "late", "zombie", "succeed"], [70, 8, 6, 8, 4, 4])[0]:
            case "again" if following:
                sequence = following - 1
            case "late" if following > 3:
                sequence = following - chance.randint(2, 3)
            case "skip":
                sequence = following + chance.randint(1, 2)
                at[place] = (epoch, sequence + 1)
            case "zombie" if epoch > 1:
                yield partition, Stamp(f"p{name}", epoch - 1, following), b"zombie"
                continue
            case "succeed":
                at[place] = (epoch + 1, following + 1)
                epoch, sequence = epoch + 1, following
            case _:
                sequence = following
                at[place] = (epoch, following + 1)
        yield partition, Stamp(f"p{name}", epoch, sequence), f"{name}/{partition}/{sequence}".encode()


def check_books(fleet: Bookkeeping, prefix: str) -> dict[str, int]:
    """Compare the changelog of a table with a replay here, by hash; return the sums of its books."""
    processor = fleet.processor(prefix)
    source, changelog = (
        read_topic(fleet.broker, topic)
        for topic in (processor.source, processor.changelog(fleet.settings.app))
    )
    sums: dict[str, int] = {}
    for partition, messages in source.items():
        outcome = model(processor, partition, messages)
        state, marker = logged_state(changelog[partition])
        assert marker == (outcome.marker if messages else None), f"{processor.name}/{partition}"
        assert sha(state) == sha(outcome.state), (
            f"{processor.name}/{partition}: the live books are not those of a replay"
        )
        for emit in outcome.emits:
            sums[emit.topic] = sums.get(emit.topic, 0) + 1
    return sums


def test_books_and_clean_topics_are_exact_through_sigkill(fleet: Bookkeeping, broker: SessionBroker) -> None:
    producer = Producer(broker.client_config(**{"linger.ms": 2}))
    load = list(misbehaviour(seed=5, producers=20, records=4_000))
    for at, (partition, stamp, value) in enumerate(load):
        for topic in (fleet.raw, fleet.orders):
            producer.produce(topic, value, b"k", partition, headers=list(stamp_headers(stamp)))
        producer.poll(0)
        if at == len(load) // 3:
            assert producer.flush(DEADLINE_S) == 0
            victim = fleet.owner(fleet.processor("clean-").name, 0)
            victim.kill()
            victim.start()
    assert producer.flush(DEADLINE_S) == 0
    fleet.wait_folded()
    check_books(fleet, "books-")
    sums = check_books(fleet, "clean-")
    processor = fleet.processor("clean-")
    for topic in processor.emits:
        found = read_topic(broker, topic)
        assert sum(map(len, found.values())) == sums[topic], f"{topic}: each emit is there once"
    clean = read_topic(broker, fleet.clean)
    kept: set[tuple[str, int, int]] = set()
    for partition, messages in clean.items():
        for message in messages:
            found_stamp = read_stamp(tuple(message.headers() or ()))  # type: ignore[arg-type]
            assert found_stamp is not None
            number = (found_stamp.producer, partition, found_stamp.sequence)
            assert number not in kept, f"{number} is in the clean topic twice"
            assert message.value() == f"{number[0][1:]}/{partition}/{number[2]}".encode(), (
                "no zombie is in the clean topic"
            )
            kept.add(number)
    newest: dict[tuple[str, int], int] = {}
    wanted = set()
    for partition, stamp, _ in load:
        if stamp.epoch >= newest.setdefault((stamp.producer, partition), stamp.epoch):
            newest[stamp.producer, partition] = stamp.epoch
            wanted.add((stamp.producer, partition, stamp.sequence))
    # a late record from before the books began looks like a duplicate; nothing here does
    assert kept == wanted, f"lost: {sorted(wanted - kept)[:3]}, invented: {sorted(kept - wanted)[:3]}"
    told = [
        decode_verdict(message.value() or b"")
        for messages in read_topic(broker, f"{fleet.raw}.verdicts").values()
        for message in messages
    ]
    assert {each.verdict for each in told} == {
        Judgement.GAP,
        Judgement.LATE,
        Judgement.DUPLICATE,
        Judgement.ZOMBIE,
    }
    assert len(kept) + sum(not each.kept for each in told) == len(load)


def test_a_named_producer_numbers_its_records_and_continues_after_a_restart(
    fleet: Bookkeeping, broker: SessionBroker
) -> None:
    name = f"billing-{uuid.uuid4().hex[:6]}"
    with SequencedProducer(fleet.settings, name, instance="one") as producer:
        sent = [producer.send(fleet.orders, b"%d" % at, key=b"k%d" % (at % 7)) for at in range(100)]
        producer.flush()
        first = producer.epoch
        assert {each.stamp.epoch for each in sent} == {first}
        assert producer.bump() == first + 1
        producer.send(fleet.orders, b"bumped", partition=0)
    with SequencedProducer(fleet.settings, name, instance="two") as producer:
        second = producer.epoch
        assert second > first + 1, "the time, which is above all epochs of a registry that was made before"
        again = producer.send(fleet.orders, b"restarted", partition=0)
        assert again.stamp == Stamp(name, second, 0, 0)
    with BlockingTableClient(fleet.settings, fleet.processors) as tables:
        books = fleet.processor("books-")
        ends = last_offsets(read_topic(broker, fleet.orders))
        for partition, last in ends.items():
            book = tables.get(
                books, book_key(name), partition=partition, at_least=(partition, last), timeout_s=DEADLINE_S
            ).value
            assert isinstance(book, Book)
            mine = [each for each in sent if each.partition == partition]
            assert (book.faults.gaps, book.faults.duplicates, book.faults.zombies, book.faults.late) == (
                0,
                0,
                0,
                0,
            )
            assert book.records == len(mine) + (2 if partition == 0 else 0)
            if partition == 0:
                assert (book.epoch, book.last_sequence, book.faults.restarts) == (second, 0, 2)
            else:
                assert (book.epoch, book.last_sequence) == (first, len(mine) - 1)
        held = tables.get(fleet.processor("producers"), name_key(name), timeout_s=DEADLINE_S).value
        assert isinstance(held, Registration)
        assert (held.epoch, held.instance) == (second, "two")
        listed = [
            producer_of_key(answer.key) for answer in tables.scan(books, book_key(name), timeout_s=DEADLINE_S)
        ]
        assert set(listed) == {name}


@pytest.mark.variant
def test_a_producer_whose_name_was_taken_over_is_fenced_and_its_later_records_are_a_zombies(
    fleet: Bookkeeping, broker: SessionBroker
) -> None:
    name = f"twin-{uuid.uuid4().hex[:6]}"
    first = SequencedProducer(fleet.settings, name).open()
    first.send(fleet.orders, b"a", partition=1)
    first.flush()
    with SequencedProducer(fleet.settings, name) as second:
        second.send(fleet.orders, b"b", partition=1)
        second.flush()

        def fenced() -> bool:
            try:
                first.send(fleet.orders, b"zombie", partition=1)
            except FencedError as error:
                return f"was replaced by {second.epoch}" in str(error)
            return False

        wait_for("the first producer is told", fenced, DEADLINE_S)
        with pytest.raises(FencedError):
            first.bump()
    with pytest.raises(FencedError):
        first.close()
    thawed = Producer(broker.client_config())  # what a process does that was frozen within send()
    thawed.produce(
        fleet.orders, b"zombie", partition=1, headers=list(stamp_headers(Stamp(name, first.epoch, 1, 0)))
    )
    assert thawed.flush(DEADLINE_S) == 0
    fleet.wait_folded()
    with BlockingTableClient(fleet.settings, fleet.processors) as tables:
        book = tables.get(fleet.processor("books-"), book_key(name), partition=1, timeout_s=DEADLINE_S).value
        assert isinstance(book, Book)
        assert (book.epoch, book.records, book.faults.restarts) == (second.epoch, 2, 1)
        assert (book.faults.duplicates, book.faults.zombies >= 1) == (0, True)


def test_a_record_whose_acknowledgement_was_lost_is_sent_again_and_is_in_the_clean_topic_once(
    fleet: Bookkeeping, broker: SessionBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"unsure-{uuid.uuid4().hex[:6]}"
    delivered, lost = SequencedProducer._delivered, list[int]()

    def forgetful(self: SequencedProducer, sent: Sent, error: KafkaError | None, message: Message) -> None:
        if sent.stamp.sequence in (3, 17) and sent.stamp.sequence not in lost:
            lost.append(sent.stamp.sequence)
            error = KafkaError(KafkaError._MSG_TIMED_OUT)
        delivered(self, sent, error, message)

    monkeypatch.setattr(SequencedProducer, "_delivered", forgetful)
    with SequencedProducer(fleet.settings, name, limit_unsure=4) as producer:
        for at in range(20):
            producer.send(fleet.raw, b"%d" % at, partition=1)
        producer.flush()
    assert sorted(lost) == [3, 17]
    fleet.wait_folded()
    mine = [
        message.value()
        for message in read_topic(broker, fleet.clean)[1]
        if (stamp := read_stamp(tuple(message.headers() or ()))) is not None and stamp.producer == name  # type: ignore[arg-type]
    ]
    assert mine == [b"%d" % at for at in range(20)]
    with BlockingTableClient(fleet.settings, fleet.processors) as tables:
        book = tables.get(fleet.processor("clean-"), book_key(name), partition=1, timeout_s=DEADLINE_S).value
        assert isinstance(book, Book)
        assert (book.faults.duplicates, book.records) == (2, 20)


def test_numbers_of_the_callers_own_find_records_that_are_sent_again_after_a_restart(
    fleet: Bookkeeping, broker: SessionBroker
) -> None:
    name = f"importer-{uuid.uuid4().hex[:6]}"
    for start, stop in ((0, 6), (4, 10)):  # the second run is not sure of 4 and 5
        with SequencedProducer(fleet.settings, name) as producer:
            for line in range(start, stop):
                producer.send(fleet.raw, b"line %d" % line, partition=0, sequence=line)
    fleet.wait_folded()
    mine = [
        message.value()
        for message in read_topic(broker, fleet.clean)[0]
        if (stamp := read_stamp(tuple(message.headers() or ()))) is not None and stamp.producer == name  # type: ignore[arg-type]
    ]
    assert mine == [b"line %d" % line for line in range(10)]


def test_a_registry_without_a_keeper_is_reported_in_time_and_so_are_slips(
    broker: SessionBroker, fleet: Bookkeeping
) -> None:
    kafka = {key: str(value) for key, value in broker.config.items()}
    nowhere = Settings(app="nobody", kafka=kafka, producers_topic=f"nowhere-{uuid.uuid4().hex[:6]}")
    with (
        NameHolder(nowhere, "billing", timeout_s=DEADLINE_S) as holder,
        pytest.raises(TopicError, match="does not exist"),
    ):
        holder.register()
    for topic in (nowhere.producers_topic, f"{nowhere.producers_topic}.answers"):
        broker.create_topic(topic, exact=True)

    def is_unanswered() -> bool:
        """Of a slow broker, not even the topics may be known in so short a time."""
        with NameHolder(nowhere, "billing", timeout_s=2) as holder, pytest.raises(BrokerError) as refused:
            holder.register()
        return "did not answer for producer billing within 2 s" in str(refused.value)

    wait_for("the reason", is_unanswered, DEADLINE_S)
    closed = SequencedProducer(fleet.settings, "slips")
    with pytest.raises(ConfigError, match="is not open"):
        closed.send(fleet.orders, b"x")
    with SequencedProducer(fleet.settings, "slips") as producer:
        with pytest.raises(ConfigError, match="set by the producer"):
            producer.send(fleet.orders, b"x", headers=(("holdfast-epoch", b"9"),))
        with pytest.raises(ConfigError, match="sequence"):
            producer.send(fleet.orders, b"x", sequence=1 << 31)
        with pytest.raises(TopicError):
            producer.send("no-such-topic", b"x")
    with pytest.raises(ConfigError, match="printable"):
        SequencedProducer(fleet.settings, "")
