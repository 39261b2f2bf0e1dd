"""Conversations of producers, and of records and ids that they may not touch."""

from __future__ import annotations

import struct
import time
from typing import Any

from holdfast.core.kafka.record_batch import (
    TRANSACTIONAL_BIT,
)
from tests.embedded.transcripts.asking import batch, fetch, produce, scenario
from tests.embedded.transcripts.talk import Talk, codes_in
from tests.support.patience import DEADLINE_S

UNSTABLE = {88}
"""The code of an offset whose transaction has no outcome yet."""

# -- transactions


class BareProducer:
    """A transactional producer of the bare protocol."""

    def __init__(self, talk: Talk, name: str) -> None:
        self.talk, self.name, self.sequence = talk, talk.name(name), 0
        talk.coordinated(self.name, 1)
        # A cluster's first id is 0, and errors have 0 in that field too: the two must not look the same.
        talk.quietly("InitProducerId", transactional_id=None, transaction_timeout_ms=60_000)
        self.start()

    def start(self, version: int = 5, **more: Any) -> None:
        told = {"transactional_id": self.name, "transaction_timeout_ms": 60_000, **more}
        answer = self.talk.until("InitProducerId", version, **told)
        if answer["error_code"] == 0:
            self.id, self.epoch, self.sequence = answer["producer_id"], answer["producer_epoch"], 0

    @property
    def named(self) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch}

    def add(self, topic: str, version: int = 3) -> None:
        told = {f"v3_and_below_{name}": value for name, value in self.named.items()}
        topics = [{"name": topic, "partitions": [0]}]
        self.talk.until("AddPartitionsToTxn", version, v3_and_below_topics=topics, **told)

    def send(self, topic: str, value: bytes, version: int = 11) -> None:
        told = {"producer_id": self.id, "producer_epoch": self.epoch, "base_sequence": self.sequence}
        data = batch(value, attributes=TRANSACTIONAL_BIT, **told)
        answer = produce(self.talk, topic, data, version, transactional_id=self.name)
        code = answer["responses"][0]["partition_responses"][0]["error_code"]
        self.sequence += code == 0

    def end(self, commit: bool, version: int = 4, **more: Any) -> dict[str, Any]:
        told = {**self.named, "committed": commit, **more}
        answer = self.talk.until("EndTxn", version, **told)
        if version >= 5 and answer["error_code"] == 0:
            self.sequence = 0 if answer["producer_epoch"] != self.epoch else self.sequence
            self.id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        return answer

    def describe(self) -> None:
        """Record a description of the transaction, once its markers are written."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            answer = self.talk.client().ask("DescribeTransactions", 0, transactional_ids=[self.name])
            if not answer["transaction_states"][0]["transaction_state"].startswith("Prepare"):
                break
            assert time.monotonic() < until_s
            time.sleep(0.02)
        self.talk.tell("DescribeTransactions 0", answer)


@scenario
def transactions(talk: Talk) -> None:
    topic = talk.topic("orders")
    one = BareProducer(talk, "writer")
    one.send(topic, b"unannounced")
    one.send(topic, b"unannounced", 10)
    for version in range(4):
        one.add(topic, version)
    one.describe()
    one.send(topic, b"a")
    one.send(topic, b"b")
    fetch(talk, topic, 0, isolation_level=1)
    talk.ask(
        "ListOffsets",
        10,
        replica_id=-1,
        isolation_level=1,
        topics=[
            {
                "name": topic,
                "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}],
            }
        ],
    )
    talk.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    one.end(True)
    one.describe()
    one.end(True)
    one.end(False)
    one.add(topic)
    one.send(topic, b"dropped")
    one.end(False)
    one.describe()
    for level in (0, 1):
        fetch(talk, topic, 0, isolation_level=level)
        fetch(talk, topic, 3, isolation_level=level)
    for version in range(4):
        one.add(topic, version)
        one.end(True, version)
        one.describe()
    one.end(True, producer_epoch=one.epoch + 1)
    one.end(True, 1, producer_epoch=one.epoch + 1)
    one.end(True, producer_id=one.id + 10**12)
    one.end(True, transactional_id=talk.name("nobody"))
    one.end(True, transactional_id="")
    one.add(talk.name("nowhere"))
    talk.ask("DescribeTransactions", 0, transactional_ids=[talk.name("nobody"), ""])
    for version in talk.versions("ListTransactions"):
        found = talk.client().ask("ListTransactions", version, producer_id_filters=[one.id])
        talk.tell(f"ListTransactions {version}", found)
    talk.tell("ListTransactions", talk.client().ask("ListTransactions", 0, state_filters=["Nonsense"]))


@scenario
def transactions_of_the_new_protocol(talk: Talk) -> None:
    topic = talk.topic("orders")
    one = BareProducer(talk, "writer")
    one.end(True, 5)
    one.end(False, 5)
    one.describe()
    one.send(topic, b"a", 12)
    one.describe()
    one.send(topic, b"b", 12)
    epoch = one.epoch
    one.end(True, 5)
    one.describe()
    talk.until("EndTxn", 5, **{**one.named, "producer_epoch": epoch}, committed=True)
    talk.until("EndTxn", 5, **{**one.named, "producer_epoch": epoch}, committed=False)
    one.send(topic, b"dropped", 12)
    one.end(False, 5)
    one.end(False, 5)
    one.end(True, 5)
    fetch(talk, topic, 0, isolation_level=1)
    talk.ask("DescribeProducers", 0, topics=[{"name": topic, "partition_indexes": [0]}])
    late = {"producer_id": one.id, "producer_epoch": epoch, "base_sequence": 2}
    produce(talk, topic, batch(b"late", attributes=TRANSACTIONAL_BIT, **late), 12, transactional_id=one.name)


@scenario
def fenced(talk: Talk) -> None:
    topic = talk.topic("orders")
    for version in talk.versions("InitProducerId"):
        talk.until("InitProducerId", version, transactional_id=None, transaction_timeout_ms=1000)
    one = BareProducer(talk, "writer")
    old = dict(one.named)
    one.add(topic)
    one.send(topic, b"a")
    one.start()
    one.describe()
    talk.ask("EndTxn", 4, **old, committed=True)
    talk.ask("EndTxn", 1, **old, committed=True)
    told = {f"v3_and_below_{name}": value for name, value in old.items()}
    for version in (1, 3):
        talk.ask(
            "AddPartitionsToTxn", version, v3_and_below_topics=[{"name": topic, "partitions": [0]}], **told
        )
    stale = {"producer_id": old["producer_id"], "producer_epoch": old["producer_epoch"], "base_sequence": 1}
    produce(talk, topic, batch(b"late", attributes=TRANSACTIONAL_BIT, **stale), transactional_id=one.name)
    produce(talk, topic, batch(b"late", **stale))
    one.start(producer_id=one.id, producer_epoch=one.epoch)
    one.start(producer_id=one.id, producer_epoch=one.epoch - 1)
    for version in (3, 5):
        one.start(version, producer_id=one.id, producer_epoch=old["producer_epoch"])
        one.start(version, producer_id=one.id + 10**12, producer_epoch=0)
    one.start(transaction_timeout_ms=0)
    one.start(transaction_timeout_ms=10**8)
    one.start(transactional_id="")
    one.start(producer_id=5)
    fetch(talk, topic, 0, isolation_level=1)


@scenario
def offsets_of_transactions(talk: Talk) -> None:
    topic, group = talk.topic("orders"), talk.name("readers")
    talk.coordinated(group)
    one = BareProducer(talk, "writer")

    def commit(offset: int, version: int = 3, **more: Any) -> None:
        told = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}
        asked = [{"name": topic, "partitions": [told]}]
        named = {**one.named, "generation_id": -1, "member_id": "", **more}
        talk.until("TxnOffsetCommit", version, group_id=group, topics=asked, **named)

    def look() -> None:
        asked = [{"name": topic, "partition_indexes": [0]}]
        for stable in (False, True):
            talk.ask("OffsetFetch", 9, groups=[{"group_id": group, "topics": asked}], require_stable=stable)

    commit(1)
    for version in talk.versions("AddOffsetsToTxn"):
        talk.until("AddOffsetsToTxn", version, group_id=group, **one.named)
    for version in range(4):
        commit(2 + version, version)
    look()
    one.end(True)
    one.describe()
    look()
    talk.until("AddOffsetsToTxn", 3, group_id=group, **one.named)
    commit(9)
    one.end(False)
    one.describe()
    look()
    commit(9, 4)
    commit(9, 3, generation_id=5, member_id="nobody")
    commit(10, 5)
    one.end(True, 5)
    one.describe()
    look()
    talk.ask("AddOffsetsToTxn", 3, group_id=group, **{**one.named, "producer_epoch": one.epoch - 1})
    talk.ask("AddOffsetsToTxn", 1, group_id=group, **{**one.named, "producer_epoch": one.epoch - 1})


class BareCommits:
    """Offsets of one group and topic: committed at once, or by a transaction."""

    def __init__(self, talk: Talk, name: str) -> None:
        self.talk, self.topic, self.group = talk, talk.topic(name), talk.name(name)
        talk.coordinated(self.group)

    def plain(self, offset: int) -> None:
        told = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        member: dict[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": ""}
        self.talk.until(
            "OffsetCommit",
            9,
            group_id=self.group,
            topics=[{"name": self.topic, "partitions": [told]}],
            **member,
        )

    def by(self, producer: BareProducer, offset: int) -> None:
        told = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        member = {"generation_id": -1, "member_id": "", **producer.named}
        self.talk.until("AddOffsetsToTxn", 3, group_id=self.group, **producer.named)
        topics = [{"name": self.topic, "partitions": [told]}]
        self.talk.until("TxnOffsetCommit", 3, group_id=self.group, topics=topics, **member)

    def look(self, *, stable: bool = False) -> None:
        asked = [{"group_id": self.group, "topics": [{"name": self.topic, "partition_indexes": [0]}]}]
        self.talk.ask("OffsetFetch", 9, groups=asked, require_stable=stable)

    def settle(self) -> None:
        """Wait until no transaction without an outcome has an offset."""
        asked = [{"group_id": self.group, "topics": [{"name": self.topic, "partition_indexes": [0]}]}]
        until_s = time.monotonic() + DEADLINE_S
        while UNSTABLE & codes_in(self.talk.quietly("OffsetFetch", 9, groups=asked, require_stable=True)):
            assert time.monotonic() < until_s
            time.sleep(0.02)


def ended(producer: BareProducer) -> None:
    producer.end(True)
    producer.describe()


@scenario
def the_offset_counts_that_was_written_last(talk: Talk) -> None:
    """Not the one whose transaction was decided last."""
    commits, one, other = BareCommits(talk, "orders"), BareProducer(talk, "one"), BareProducer(talk, "other")
    commits.by(one, 5)
    commits.plain(9)
    ended(one)
    commits.look(stable=True)
    commits.by(one, 20)
    commits.by(other, 30)
    ended(other)
    ended(one)
    commits.look(stable=True)


@scenario
def offsets_that_are_deleted_while_in_doubt(talk: Talk) -> None:
    """They go, whatever becomes of their transactions."""
    of_group, of_topic, by_name = (BareCommits(talk, each) for each in ("groups", "topics", "names"))
    writer = BareProducer(talk, "writer")
    for each in (of_group, of_topic, by_name):
        each.by(writer, 5)
    talk.ask("DeleteGroups", 2, groups_names=[of_group.group])
    named = [{"name": by_name.topic, "partitions": [{"partition_index": 0}]}]
    by_name.plain(3)
    talk.ask("OffsetDelete", 0, group_id=by_name.group, topics=named)
    talk.ask("DeleteTopics", 6, topics=[{"name": of_topic.topic}], timeout_ms=10_000)
    of_topic.settle()
    for each in (of_group, of_topic, by_name):
        each.look(stable=True)
    ended(writer)
    for each in (of_group, of_topic, by_name):
        each.look()
    talk.ask("DescribeGroups", 5, groups=[of_group.group])


@scenario
def going_on_after_an_abort(talk: Talk) -> None:
    """A producer that starts again with a transaction open, and says who it is (KIP-360)."""
    topic = talk.topic("orders")
    for version in (11, 12):
        one = BareProducer(talk, f"writer-{version}")
        if version == 11:
            one.add(topic)
        one.send(topic, b"a", version)
        who = {"producer_id": one.id, "producer_epoch": one.epoch}
        talk.ask("InitProducerId", 5, transactional_id=one.name, transaction_timeout_ms=60_000, **who)
        one.describe()
        for _ in range(2):
            one.start(**who)
        one.describe()
        one.start()
        one.start(**who)
        one.describe()


@scenario
def the_latest_time_of_all(talk: Talk) -> None:
    """Readers of committed records do not learn of a record that has no outcome yet."""
    topic, one = talk.topic("orders"), BareProducer(talk, "writer")
    one.send(topic, b"a", 12)
    for level in (0, 1):
        wanted = [{"partition_index": 0, "timestamp": -3, "current_leader_epoch": -1}]
        told = [{"name": topic, "partitions": wanted}]
        talk.ask("ListOffsets", 10, replica_id=-1, isolation_level=level, topics=told)
    one.end(True, 5)


@scenario
def transactions_by_pattern(talk: Talk) -> None:
    nobody = talk.name("nobody")
    for pattern in ("(", "a{99999999999}", "*", f"{nobody}+"):
        talk.ask("ListTransactions", 2, duration_filter=-1, transactional_id_pattern=pattern)
    topics = [{"name": "__consumer_offsets", "partitions": [0]}]
    told: dict[str, Any] = {"transactional_id": nobody, "producer_id": 1, "producer_epoch": 1}
    talk.ask(
        "AddPartitionsToTxn",
        3,
        v3_and_below_topics=topics,
        **{f"v3_and_below_{name}": value for name, value in told.items()},
    )


@scenario
def internal_topics(talk: Talk) -> None:
    group = talk.name("readers")
    talk.coordinated(group)
    BareProducer(talk, "writer")
    for topic in ("__consumer_offsets", "__transaction_state"):
        talk.until("Metadata", 12, topics=[{"name": topic}])
        told = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        found = talk.quietly("DescribeConfigs", 4, resources=[told])["results"][0]["configs"]
        own = [each for each in found if each["config_source"] == 1]
        talk.tell(f"settings of {topic}", {"configs": own})
        produce(talk, topic, batch(b"a"))


def hostile_frame(key: int, version: int) -> bytes:
    """Return a request without a body."""
    return struct.pack(">hhih", key, version, 1, -1)
