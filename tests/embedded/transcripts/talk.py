"""Conversations with a broker in the bare protocol, written down so that those with two brokers can be
compared.

Values that differ from run to run are masked: times, ids, ports, names with their endings. Lists without an
order of their own are sorted.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.kafka.record_batch import RecordBatch, batches, control_of
from holdfast.embedded.apis.handlers import HANDLERS, UNSTABLE
from holdfast.embedded.protocol.table import apis, message
from tests.embedded.clients.raw_client import RawClient
from tests.support.patience import DEADLINE_S

NOT_YET = {14, 15, 16, 51}
"""Codes of a coordinator that is being loaded, or moved, or busy with earlier work."""
_ALWAYS_MASKED = {"throttle_time_ms", "total_bytes", "usable_bytes"}
_MASKED = {
    *_ALWAYS_MASKED,
    "log_dir",
    "topic_id",
    "cluster_id",
    "host",
    "port",
    "session_id",
    "finalized_features_epoch",
    "log_append_time_ms",
    "last_timestamp",
    "transaction_start_time_ms",
    "documentation",
}
_SORTED = {
    "topics": ("name", "topic", "topic_id"),
    "responses": ("name", "resource_name", "topic"),
    "results": ("name", "resource_name", "group_id"),
    "partitions": ("partition_index", "partition"),
    "configs": ("name",),
    "config_resources": ("resource_type", "resource_name"),
    "groups": ("group_id",),
    "results_by_partition": ("partition_index",),
    "topic_results": ("name",),
    "results_by_topic_v3_and_below": ("name",),
    "members": ("member_id",),
    "transaction_states": ("transactional_id",),
    "active_producers": ("producer_id",),
    "supported_features": ("name",),
    "finalized_features": ("name",),
}
_UNKNOWN_BYTES = bytes(16)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class TooLateError(Exception):
    """The client stalled for so long that the broker may have given up waiting for it, and rightly."""


@contextmanager
def within(timeout_s: float) -> Iterator[None]:
    """Raise `TooLateError`, whatever the answer, when the block takes as long as the broker waits for
    requests in it.
    """
    began_s, failure = time.monotonic(), None
    try:
        yield
    except (AssertionError, LookupError, OSError, TooLateError) as error:
        failure = error
    if time.monotonic() - began_s >= timeout_s:
        raise TooLateError from failure
    if failure is not None:
        raise failure


class Talk:
    """One conversation; `lines` is its transcript."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint, self.lines = endpoint, list[str]()
        self._clients: dict[str, RawClient] = {}
        self._ending = uuid.uuid4().hex[:8]
        self._producers: dict[int, str] = {}

    def close(self) -> None:
        for each in self._clients.values():
            each.close()

    def client(self, name: str = "raw") -> RawClient:
        """Return the connection of that name."""
        if name not in self._clients:
            self._clients[name] = RawClient(self.endpoint, name)
        return self._clients[name]

    def forget(self, name: str) -> None:
        """Close the connection of that name, so that the next of that name is another one."""
        self._clients.pop(name).close()

    def name(self, name: str) -> str:
        """Return *name* with an ending that no other conversation has, and that is not written down."""
        return f"{name}-{self._ending}"

    @staticmethod
    def versions(api: str) -> Iterable[int]:
        """Return the versions of *api* that Kafka offers."""
        found = message(f"{api}Request").versions
        return range(found[0], UNSTABLE.get(api, found[-1] + 1))

    def ask(self, api: str, version: int | None = None, *, by: str = "raw", **fields: Any) -> dict[str, Any]:
        """Send a request, record its answer and return it; *version* None is the newest."""
        version = list(self.versions(api))[-1] if version is None else version
        answer = self.client(by).ask(api, version, **fields)
        self.tell(f"{api} {version}", answer)
        return answer

    def until(
        self, api: str, version: int | None = None, *, by: str = "raw", **fields: Any
    ) -> dict[str, Any]:
        """Ask until nothing has to be waited for any more, and write down that answer alone."""
        answer = self.quietly(api, version, by=by, **fields)
        version = list(self.versions(api))[-1] if version is None else version
        self.tell(f"{api} {version}", answer)
        return answer

    def quietly(
        self, api: str, version: int | None = None, *, by: str = "raw", **fields: Any
    ) -> dict[str, Any]:
        """Ask as `until` does, and write nothing down."""
        version = list(self.versions(api))[-1] if version is None else version
        until_s = time.monotonic() + DEADLINE_S
        while NOT_YET & codes_in(answer := self.client(by).ask(api, version, **fields)):
            assert time.monotonic() < until_s, answer
            time.sleep(0.02)
        return answer

    def topic(self, name: str, partitions: int = 1, **configs: str) -> str:
        """Make a topic, quietly, and return its whole name once it can be written to."""
        topic = self.name(name)
        told = [{"name": each.replace("_", "."), "value": value} for each, value in configs.items()]
        wanted = {"name": topic, "num_partitions": partitions, "replication_factor": 1, "configs": told}
        self.quietly("CreateTopics", topics=[wanted], timeout_ms=10_000)
        self.led(topic, partitions)
        return topic

    def led(self, topic: str, partitions: int) -> None:
        """Wait until the broker knows of all partitions of a topic, and leads them."""
        until_s = time.monotonic() + DEADLINE_S
        while True:
            (found,) = self.quietly("Metadata", 12, topics=[{"name": topic}])["topics"]
            numbers = [each["partition_index"] for each in found["partitions"]]
            if len(numbers) == partitions and self._leads(topic, numbers):
                return
            assert time.monotonic() < until_s
            time.sleep(0.02)

    def _leads(self, topic: str, numbers: list[int]) -> bool:
        """Return whether the leader of each partition answers for it."""
        wanted = [{"partition_index": each, "timestamp": -1, "current_leader_epoch": -1} for each in numbers]
        told = [{"name": topic, "partitions": wanted}]
        return codes_in(self.client().ask("ListOffsets", 10, replica_id=-1, topics=told)) == {0}

    def set(self, topic: str, **settings: str) -> None:
        """Wait until the broker has received *settings* from its controller."""
        told = {"resource_type": 2, "resource_name": topic, "configuration_keys": None}
        until_s = time.monotonic() + DEADLINE_S
        wanted = {name.replace("_", "."): value for name, value in settings.items()}
        while True:
            (found,) = self.quietly("DescribeConfigs", 4, resources=[told])["results"]
            if wanted.items() <= {each["name"]: each["value"] for each in found["configs"]}.items():
                return
            assert time.monotonic() < until_s, wanted
            time.sleep(0.02)

    def topic_id(self, topic: str) -> bytes:
        found: bytes = self.quietly("Metadata", 12, topics=[{"name": topic}])["topics"][0]["topic_id"]
        return found

    def coordinated(self, key: str, kind: int = 0) -> None:
        """Wait until *key* has a coordinator that has loaded its log."""
        self.quietly("FindCoordinator", key_type=kind, coordinator_keys=[key])
        if kind == 0:
            self.quietly("DescribeGroups", groups=[key])
        else:
            self.quietly("DescribeTransactions", transactional_ids=[key])

    # -- writing down

    def tell(self, what: str, answer: Any) -> None:
        """Write down *answer* to *what*."""
        text = json.dumps(self._masked(answer, ""), sort_keys=True, default=repr)
        text = text.replace(f"-{self._ending}", "")
        self.lines.append(f"{what}: {_UUID.sub('<uuid>', text)}")

    def _masked(self, value: Any, name: str) -> Any:
        if name in _MASKED:
            empty = value in (None, "", -1, 0, _UNKNOWN_BYTES)
            return repr(value) if empty and name not in _ALWAYS_MASKED else f"<{name}>"
        if name in ("producer_id", "previous_producer_id") and isinstance(value, int) and value >= 0:
            return self._producers.setdefault(value, f"<producer {len(self._producers)}>")
        if name == "api_keys":
            offered = {key for key, api, _ in apis() if api in HANDLERS}
            value = sorted(
                (each for each in value if each["api_key"] in offered), key=lambda each: each["api_key"]
            )
        if name == "records":
            return None if value is None else [self._batch(each) for _, _, each in batches(bytes(value))]
        if isinstance(value, dict):
            return {key: self._masked(each, key) for key, each in value.items()}
        if isinstance(value, list | tuple):
            found = [self._masked(each, "") for each in value]
            return sorted(found, key=lambda each: _order(each, name)) if name in _SORTED else found
        if isinstance(value, bytes | memoryview):
            return bytes(value).decode("latin-1")
        return (
            "<time>"
            if isinstance(value, int) and not isinstance(value, bool) and value > 10**12 and value < 10**15
            else value
        )

    def _batch(self, batch: RecordBatch) -> dict[str, Any]:
        return {
            "base_offset": batch.base_offset,
            "leader_epoch": batch.partition_leader_epoch,
            "attributes": batch.attributes,
            "producer_id": self._masked(batch.producer_id, "producer_id"),
            "producer_epoch": batch.producer_epoch,
            "base_sequence": batch.base_sequence,
            "times": [batch.base_timestamp_ms > 0, batch.max_timestamp_ms > 0],
            "records": [
                [each.offset_delta, self._masked(each.key, ""), self._masked(each.value, "")]
                if not batch.is_control
                else str(control_of(batch, each))
                for each in batch.records
            ],
        }


def _order(value: Any, name: str) -> str:
    if not isinstance(value, dict):
        return str(value)
    return "".join(f"{value[key]!s:>12}" for key in _SORTED[name] if key in value) + json.dumps(
        value, sort_keys=True, default=repr
    )


def codes_in(answer: Any) -> set[int]:
    """Return every error code in *answer*."""
    if isinstance(answer, dict):
        own = {value for key, value in answer.items() if key.endswith("error_code")}
        return own.union(*map(codes_in, answer.values()))
    return set().union(*map(codes_in, answer)) if isinstance(answer, list) else set()
