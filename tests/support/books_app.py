"""An application of accounts whose versions are begun by a command: with a source of records of every kind,
on an embedded Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
from confluent_kafka import Producer

from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, Bootstrapped, bootstrap
from holdfast.pipeline.bootstrap.sink import BootstrapOutcome
from holdfast.pipeline.replay import ReplayOptions
from holdfast.pipeline.topic import TopicLog, TopicReader
from tests.pipeline.accounts import Account, Op, accounts
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

PARTITIONS = 2
LOCAL = ReplayOptions(engine="local")
SEND = BootstrapOptions(replay=LOCAL, emits="send")
SILENT = BootstrapOptions(replay=LOCAL)
MIGRATE = BootstrapOptions(replay=LOCAL, migrate=True)


class Crash(BaseException):
    """Simulates SIGKILL: no handler that could clean up runs."""


class Books:
    """The application. Its version 1 is declared, and has 120 records in each partition of its source."""

    def __init__(self, kafka: EmbeddedKafka) -> None:
        self.name = f"books-{ending()}"
        self.source = f"{self.name}-in"
        self.settings = Settings(
            app=self.name,
            kafka={key: str(value) for key, value in kafka.client_config().items()},
            request_timeout_s=60,
            stall_timeout_s=120,
        )
        self._producer = Producer(kafka.client_config())
        kafka.create_topic(self.source, partitions=PARTITIONS, config={"retention.ms": "-1"})
        self.first = self.version(1)
        self.write(120)

    def begun(self) -> Books:
        """Return it with a state of version 1, which has folded and emitted all there is."""
        bootstrap(self.first, self.settings, SEND)
        return self

    def version(self, version: int, **changed: Any) -> Processor[Op, Account]:
        """Return the processor in a version, its topics made."""
        emits = tuple(f"{self.name}-{name}" for name in ("large", "fired"))
        made = accounts(self.source)
        renamed = replace(
            made,
            version=version,
            emits=emits,
            fold=_renaming(made.fold, self.name),
            on_wake=_renaming(made.on_wake, self.name),
            **changed,
        )
        create_topics(self.settings, [renamed], partitions=PARTITIONS)
        return renamed

    def write(self, count: int, first: int = 0) -> None:
        """Append *count* records to each partition: sums, timers, removals, and records that are refused."""
        for partition in range(PARTITIONS):
            for at in range(first, first + count):
                verb = ("add", "wake", "add", "boom", "sum", "add")[at % 6]
                amount = 10_000 if verb == "wake" and at > 100 else at % 97  # some timers are left
                value = None if at % 17 == 16 else b"%b k%d %d" % (verb.encode(), at % 5, amount)
                self._producer.produce(
                    self.source, value, b"k%d" % (at % 5), partition, timestamp=1_000 + 40 * at
                )
        assert self._producer.flush(DEADLINE_S) == 0

    def messages(self, name: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return the committed records of a topic as (key, value), in order by partition."""
        out = []
        with TopicLog(self.settings, name) as log:
            spans = log.spans()
        with TopicReader(self.settings, name) as reader:
            for partition, span in spans.items():
                for records, _ in reader.records(partition, span):
                    out += list(zip(records.keys, records.values, strict=True))
        return out


def _renaming(call: Any, name: str) -> Any:
    """Return a fold that emits to the application's own topics."""

    def renamed(*arguments: Any) -> Iterator[Any]:
        for emit in call(*arguments) or ():
            known = emit.topic in ("large", "fired")
            yield msgspec.structs.replace(emit, topic=f"{name}-{emit.topic}") if known else emit

    return renamed


def outcomes(done: Bootstrapped) -> list[BootstrapOutcome]:
    return [each.outcome for each in done.partitions]
