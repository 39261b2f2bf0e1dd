"""The progress of landings, noted in Kafka: a table whose newest commits are gone cannot show it.

The note is the committed offset of a consumer group, one for each table, by its folder and its id: the end
offset of each partition, with the topic's id. Kafka forgets it with the topic, and
`offsets.retention.minutes` after the last landing.
"""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NamedTuple

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError, HoldfastError
from holdfast.kafka.codes import NO_GROUP, code_of
from holdfast.kafka.committed_text import committed_text
from holdfast.kafka.coordinator_admin import NEVER_S, CoordinatorAdmin
from holdfast.pipeline.bronze.faults import LakeFault
from holdfast.pipeline.bronze.lake import Landed, table_uri

logger = logging.getLogger(__name__)

GROUP_PREFIX = "holdfast-landed-"
ASK_S = 10.0
"""So long a landing or a check waits for the note."""
ID_CHARACTERS = 22
"""Of a topic's id. Whatever follows it in the metadata of a commit is not of it."""
REST_S = 60.0
"""The time without another attempt after a note that failed."""
_CONNECT_S = 2.0


class LandedNote(NamedTuple):
    """The end offset that landings had reached of a partition, and the id of the topic that they landed."""

    end: int
    topic_id: str


class LandedNotes:
    """The notes of all tables in one Kafka, for any thread; it keeps one client."""

    def __init__(self, settings: Settings) -> None:
        self._admin = CoordinatorAdmin(settings.client(), logger)
        self._timeout_s = min(ASK_S, settings.request_timeout_s)
        self._lock = threading.Lock()
        self._rests_until_s = 0.0

    def ahead(self, path: str, table_id: str, landed: Landed) -> Iterator[LakeFault]:
        """Yield where landings of the same topic had come further than the newest in the table's log."""
        for partition, noted in sorted(self.read(path, table_id, landed.topic).items()):
            end = landed.end.get(partition, 0)
            if noted.topic_id != landed.topic_id or noted.end <= end:
                continue
            told = (
                f"{path} partition {partition} ends at offset {end}, and landings had come to {noted.end}"
                f" (Kafka has that in group {group_of(path, table_id)}): the newest commits of its log are"
                " gone, or it was put back to an older state. Put its log back as it was; or `holdfast"
                " pipeline land` goes on from there, with what the topic still holds"
            )
            yield LakeFault(
                kind="chain", table=path, partition=partition, first=end, last=noted.end - 1, told=told
            )

    def note(self, path: str, table_id: str, landed: Landed) -> None:
        """Note how far a landing has come; where Kafka does not take it, that is logged, and the next note
        waits.
        """
        if system_clock.monotonic_s() < self._rests_until_s:
            return
        notes = {at: LandedNote(end, landed.topic_id) for at, end in landed.end.items()}
        try:
            self.write(path, table_id, landed.topic, notes)
        except HoldfastError as error:
            self._rests_until_s = system_clock.monotonic_s() + REST_S
            logger.warning(
                "how far %(path)s has come is not noted in Kafka, so `pipeline check` would not see that its"
                " newest commits are gone: %(cause)s",
                {"path": path, "cause": str(error)},
            )

    def read(self, path: str, table_id: str, topic: str) -> dict[int, LandedNote]:
        """Return the notes on a table, by partition; BrokerError if Kafka does not answer."""
        group = group_of(path, table_id)

        def ask(admin: Any, groups: list[str]) -> Mapping[str, Any]:
            asked = [ConsumerGroupTopicPartitions(each) for each in groups]
            found: Mapping[str, Any] = admin.list_consumer_group_offsets(asked, request_timeout=NEVER_S)
            return found

        answer = self._answer(group, ask)
        if answer is None:
            return {}
        return {
            each.partition: LandedNote(each.offset, committed_text(each)[:ID_CHARACTERS])
            for each in answer.topic_partitions
            if each.topic == topic and each.offset >= 0
        }

    def write(self, path: str, table_id: str, topic: str, notes: Mapping[int, LandedNote]) -> None:
        """Note how far a table has come; BrokerError where Kafka does not take it."""
        places = [TopicPartition(topic, p, each.end, metadata=each.topic_id) for p, each in notes.items()]

        def ask(admin: Any, groups: list[str]) -> Mapping[str, Any]:
            asked = [ConsumerGroupTopicPartitions(each, places) for each in groups]
            found: Mapping[str, Any] = admin.alter_consumer_group_offsets(asked, request_timeout=NEVER_S)
            return found

        group = group_of(path, table_id)
        answer = self._answer(group, ask)
        for each in () if answer is None else answer.topic_partitions:
            if each.error is not None:
                raise BrokerError(f"group {group}: {each.error.str()}")

    def _answer(self, group: str, ask: Any) -> Any:
        """Return the answer of the group's coordinator, None where there is no such group."""
        with self._lock:
            answer = self._admin.ask(ask, [group], self._timeout_s)[group]
        if isinstance(answer, FutureTimeoutError):
            raise BrokerError(f"group {group}: no answer within {self._timeout_s:g} s")
        if isinstance(answer, KafkaException):
            if code_of(answer) in NO_GROUP:
                return None
            raise BrokerError(f"group {group}: {answer.args[0].str()}") from answer
        return answer


def group_of(path: str, table_id: str) -> str:
    """Return the name of the group that keeps the note of a table.

    >>> group_of("/lake/bronze/orders", "7d3")
    'holdfast-landed-f444a973b9519c8d'
    """
    table = f"{table_uri(path).rstrip('/')} {table_id}"
    return GROUP_PREFIX + hashlib.sha256(table.encode()).hexdigest()[:16]


def is_reached(settings: Settings) -> bool:
    """Return whether one of the brokers takes connections, within moments."""
    for each in settings.bootstrap_servers.split(","):
        host, _, port = each.strip().rpartition("://")[2].rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S):
                return True
        except (OSError, ValueError):
            continue
    return False
