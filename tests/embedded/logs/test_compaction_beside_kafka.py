"""The same log, compacted by Apache Kafka's cleaner and by the embedded broker: the same batches are left."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

# the package does not declare what it re-exports
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from holdfast.config import Settings
from holdfast.core.kafka.record_batch import RecordBatch
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.logs.compaction import DELETE_HORIZON_BIT
from holdfast.kafka.requests.raw_log import RawLog
from tests.support.harness import wait_for, wait_for_ends
from tests.support.patience import DEADLINE_S

ROLL_MS = 50
LINGER_MS = 50_000
"""Each lot is sent as one batch, by flush, even if this process stalls before that."""
Config = dict[str, Any]
Pairs = list[tuple[bytes, bytes | None]]
FIRST_ROUND: list[tuple[str, Pairs]] = [
    ("plain", [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]),
    ("plain", [(b"a", b"2"), (b"d", b"1")]),
    ("commit", [(b"e", b"1"), (b"b", b"2")]),
    ("abort", [(b"a", b"9"), (b"f", b"1")]),
    ("commit", [(b"g", b"1")]),
    ("plain", [(b"c", None), (b"g", b"2"), (b"h", None)]),
    ("abort", [(b"h", b"9")]),
    ("plain", [(b"a", b"3"), (b"i", b"1")]),
    ("plain", [(b"i", b"2")]),
    ("plain", [(b"y", b"1")]),
]
ANOTHER_ROUND: list[tuple[str, Pairs]] = [
    ("plain", [(b"e", b"2")]),
    ("commit", [(b"i", None)]),
    ("plain", [(b"y", b"2")]),
]
ROUNDS = [FIRST_ROUND, ANOTHER_ROUND, ANOTHER_ROUND]


class Left(NamedTuple):
    """A batch that compaction left, without its times."""

    base_offset: int
    last_offset: int
    base_sequence: int
    of: str
    has_horizon: bool
    records: list[tuple[int, bytes | None, bytes | None]]

    @classmethod
    def read(cls, batch: RecordBatch) -> Left:
        """Return the parts of a batch that are compared; a marker's value is not, because it has the broker's
        epoch.
        """
        return cls(
            batch.base_offset,
            batch.last_offset,
            batch.base_sequence,
            "control" if batch.is_control else "transaction" if batch.is_transactional else "plain",
            bool(batch.attributes & DELETE_HORIZON_BIT),
            [
                (each.offset_delta, each.key, None if batch.is_control else each.value)
                for each in batch.records
            ],
        )


class Log:
    """A topic of one partition in which each batch has a segment of its own; it is compacted on request."""

    def __init__(self, config: Config, topic: str) -> None:
        self.topic = topic
        self._settings = Settings(kafka={name: str(value) for name, value in config.items()})
        self._admin = AdminClient(config)
        self._plain = Producer({**config, "enable.idempotence": True, "linger.ms": LINGER_MS})
        self._transactional = Producer({**config, "transactional.id": f"{topic}-t", "linger.ms": LINGER_MS})
        self._transactional.init_transactions(DEADLINE_S)

    def write(self, lots: list[tuple[str, Pairs]]) -> None:
        """Write each lot as one batch; a segment ends with the first record that comes when it is old."""
        for kind, pairs in lots:
            producer = self._plain if kind == "plain" else self._transactional
            if kind != "plain":
                producer.begin_transaction()
            for key, value in pairs:
                producer.produce(self.topic, value, key, 0)
            assert producer.flush(DEADLINE_S) == 0
            time.sleep(2 * ROLL_MS / 1000)  # the segment is old
            if kind != "plain":
                end = producer.commit_transaction if kind == "commit" else producer.abort_transaction
                end(DEADLINE_S)
                wait_for_ends(self._settings, self.topic)  # a commit returns before its markers are written
                time.sleep(2 * ROLL_MS / 1000)

    def clean_by(self, policy: str) -> None:
        """Set the policy: while it is ``delete``, no cleaner comes, and the next one meets all that was
        written.
        """
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.topic, incremental_configs=[entry])
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result(DEADLINE_S)

    def left(self) -> list[Left]:
        """Return the content of the log."""

        async def read() -> list[Left]:
            async with RawLog(self._settings) as log:
                return [Left.read(batch) async for _, batch in log.batches(self.topic, 0, 0)]

        return asyncio.run(read())


def cleaned_to(broker: SessionBroker, topic: str) -> int:
    """Return up to where Kafka's cleaner has been: it replaces segments one by one, and says so when all are
    done.
    """
    assert broker.cluster is not None
    path = broker.cluster.folder / "node-1" / "data" / "cleaner-offset-checkpoint"
    found = re.search(rf"^{re.escape(topic)} 0 (\d+)$", path.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def rounds(log: Log, clean: Callable[[list[Left]], None]) -> Iterator[list[Left]]:
    """Yield the content of a log before and after each of its compactions."""
    for lots in ROUNDS:
        log.clean_by("delete")
        log.write(lots)
        yield (before := log.left())
        log.clean_by("compact")
        clean(before)
        yield log.left()


@pytest.mark.kafka
def test_the_same_is_left(embedded: EmbeddedKafka, broker: SessionBroker, fresh_topic: FreshTopic) -> None:
    settings: Mapping[str, str] = {
        "cleanup.policy": "delete",
        "segment.ms": str(ROLL_MS),
        "min.cleanable.dirty.ratio": "0.0",
        "delete.retention.ms": "0",  # a tombstone goes with the second compaction that meets it
    }
    theirs = Log(broker.client_config(), fresh_topic("compacted", partitions=1, config=settings))
    ours = Log(embedded.client_config(), embedded.create_topic("compacted-beside", config=settings))

    def cleaner_comes(before: list[Left]) -> None:
        last = before[-1].base_offset  # alone in the segment that is written to, which no cleaner touches
        wait_for("Kafka's cleaner", lambda: cleaned_to(broker, theirs.topic) >= last, DEADLINE_S)

    def upkeep(_: list[Left]) -> None:
        embedded.run_upkeep()

    for kafka, embedded_broker in zip(rounds(theirs, cleaner_comes), rounds(ours, upkeep), strict=True):
        assert embedded_broker == kafka
