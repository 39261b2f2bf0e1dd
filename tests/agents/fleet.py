"""An application as real worker processes, the built-in one by default, and what tests write to
its topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from confluent_kafka import KafkaError, Message, Producer

from holdfast.agents.services.rationalizer import processors
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.fixtures import SessionBroker
from tests.support.harness import TIMES, Worker, module_command, wait_for
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

CLAIMS_MODULE = "holdfast.agents"


class Fleet:
    """Workers of one application with topics of its own, in processes that `close` ends.

    *declare* returns its processors; *module* is what a worker runs; *settings* count for both.
    """

    def __init__(
        self,
        broker: SessionBroker,
        folder: Path,
        *,
        app: str = "fleet",
        partitions: int = 4,
        module: str = CLAIMS_MODULE,
        declare: Callable[[Settings], Sequence[Processor[Any, Any]]] = processors,
        **settings: Any,
    ) -> None:
        self.broker, self.partitions = broker, partitions
        self._folder, self._module = folder, module
        name = f"{app}-{ending()}"
        kafka = {key: str(value) for key, value in broker.config.items()}
        self.settings = Settings(
            **{"app": name, "coordination_topic": f"{name}-marshal", "kafka": kafka, **settings}
        )
        self.processors = list(declare(self.settings))
        self.environment = {
            **environment_of(self.settings),
            **{f"HOLDFAST_{key.upper()}": str(value) for key, value in TIMES.items()},
        }
        self.workers: list[Worker] = []

    def create_topics(self, source: Mapping[str, str] | None = None) -> Self:
        """Create the source topics, with *source* as their configuration, and all that belongs to them."""
        config = {"message.timestamp.type": "LogAppendTime", **(source or {})}
        for topic in sorted({processor.source for processor in self.processors}):
            self.broker.create_topic(topic, partitions=self.partitions, config=config, exact=True)
        create_topics(self.settings, self.processors, partitions=self.partitions)
        return self

    def worker(self, name: str = "", *, module: str = "", **environment: str) -> Worker:
        """Return a new worker, not yet started."""
        found = Worker(
            name or f"w{len(self.workers) + 1}",
            self._folder,
            {**self.environment, **environment},
            module_command(module or self._module),
        )
        self.workers.append(found)
        return found

    @property
    def live(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.running]

    def wait_spread(self, *workers: Worker) -> None:
        """Return when *workers* are ready, each owns something, and every partition of every table has one
        owner among them.
        """
        wanted = sorted(
            (each.name, partition) for each in self.processors for partition in range(self.partitions)
        )

        def condition() -> bool:
            for worker in workers:
                assert worker.running, f"{worker.name} ended\n{worker.tail()}"
            owned = [worker.applied() for worker in workers]
            return (
                all(owned)
                and sorted(place for each in owned for place in each) == wanted
                and all(worker.ready for worker in workers)
            )

        wait_for(
            f"{wanted} spread over {[worker.name for worker in workers]}",
            condition,
            DEADLINE_S,
            self.tails,
        )

    def owner(self, table: str, partition: int) -> Worker:
        """Return the one worker that says it owns the partition, when one alone does: no other may while it
        moves.
        """

        def owner() -> Worker | None:
            owners = [worker for worker in self.live if (table, partition) in worker.applied()]
            return owners[0] if len(owners) == 1 else None

        return wait_for(f"one owner of {table}/{partition}", owner, DEADLINE_S, self.tails)

    def tails(self) -> str:
        return "\n".join(worker.tail() for worker in self.workers)

    def close(self) -> None:
        """End every process."""
        for worker in self.workers:
            worker.close()


def environment_of(settings: Settings) -> dict[str, str]:
    """Return the variables by which a process comes to those of *settings* that differ from the defaults."""
    own = {
        row.name: str(row.value)
        for row in settings.describe()
        if row.origin == "code" and row.value is not None
    }
    if settings.web_token is not None:
        own["web_token"] = settings.web_token  # which `describe` masks
    kafka = {f"kafka__{name.replace('.', '_')}": value for name, value in settings.kafka.items()}
    return {
        f"HOLDFAST_{name.upper()}": value
        for name, value in ({key: value for key, value in own.items() if "." not in key} | kafka).items()
    }


class Writer:
    """Writes to topics and returns the position of each record."""

    def __init__(self, broker: SessionBroker) -> None:
        self._producer = Producer(broker.client_config(**{"linger.ms": 0, "enable.idempotence": True}))
        self._failures: list[str] = []

    def write(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int = -1,
        timestamp_ms: int = 0,
    ) -> tuple[int, int]:
        """Append one record and return its partition and offset."""
        return self.write_all(topic, [(value, key, partition, timestamp_ms)])[0]

    def write_all(
        self, topic: str, records: list[tuple[bytes, bytes | None, int, int]]
    ) -> list[tuple[int, int]]:
        """Append (value, key, partition or -1, timestamp in ms or 0) in that order and return where each
        lies.
        """
        placed: dict[int, tuple[int, int]] = {}
        for at, (value, key, partition, timestamp_ms) in enumerate(records):

            def delivered(error: KafkaError | None, message: Message, at: int = at) -> None:
                if error is not None:
                    self._failures.append(error.str())
                placed[at] = message.partition() or 0, message.offset() or 0

            self._producer.produce(
                topic, value, key, partition, timestamp=timestamp_ms, on_delivery=delivered
            )
        left = self._producer.flush(DEADLINE_S)
        assert not left, f"{left} records not delivered to {topic} within {DEADLINE_S:.0f} s"
        assert not self._failures, self._failures
        return [placed[at] for at in range(len(records))]
