"""Conversations of producers, and of what they may not touch."""

from __future__ import annotations

import struct
import time
from typing import Any

from holdfast.core.kafka.record_batch import (
    TRANSACTIONAL_BIT,
)
from tests.embedded.transcripts.asking import batch, fetch, produce, scenario
from tests.embedded.transcripts.talk import Talk

# -- transactions


class _Producer:
    """A transactional producer of the bare protocol."""

    def __init__(self, talk: Talk, name: str) -> None:
        self.talk, self.name, self.sequence = talk, talk.name(name), 0
        talk.coordinated(self.name, 1)
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
        """Tell of the transaction, once its markers are written."""
        until_s = time.monotonic() + 10
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
    one = _Producer(talk, "writer")
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
    one = _Producer(talk, "writer")
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
    one = _Producer(talk, "writer")
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
    one = _Producer(talk, "writer")

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


@scenario
def internal_topics(talk: Talk) -> None:
    group = talk.name("readers")
    talk.coordinated(group)
    _Producer(talk, "writer")
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
