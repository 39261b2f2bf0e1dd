"""An application, and clusters on which its topics could lie."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from holdfast.clients.topics.checks import check
from holdfast.clients.topics.plan import plan
from holdfast.clients.topics.specs import specs_for
from holdfast.clients.topics.types import (
    ClusterTopics,
    CreateTopic,
    PartitionState,
    TopicFinding,
    TopicSpec,
    TopicState,
)
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.rows import Rows


class Total(msgspec.Struct, frozen=True):
    cents: int = 0


def fold(rows: Rows[Total], event: bytes, at_ms: int) -> None:
    rows["all"] = Total(len(event))


def processor(name: str = "totals", source: str = "orders", **more: Any) -> Processor[bytes, Total]:
    return Processor(name=name, source=source, decode=bytes, fold=fold, row=Total, **more)


SETTINGS = Settings(app="shop")
TOTALS = processor(emits=("big-customers",))


def partition(
    index: int, *, replicas: int = 1, in_sync: int | None = None, leader: int | None = 1
) -> PartitionState:
    everyone = tuple(range(1, replicas + 1))
    return PartitionState(
        partition=index,
        leader=leader,
        replicas=everyone,
        in_sync=everyone[: replicas if in_sync is None else in_sync],
    )


DEFAULTS = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "max.message.bytes": "1048588",
    "unclean.leader.election.enable": "false",
}


def topic(name: str, count: int, *layers: dict[str, str], replicas: int = 1, **config: str) -> TopicState:
    given = {key: value for layer in (*layers, config) for key, value in layer.items()}
    own = {key.replace("_", "."): value for key, value in given.items()}
    partitions = tuple(partition(index, replicas=replicas) for index in range(count))
    return TopicState(name=name, partitions=partitions, config=DEFAULTS | own, overrides=own)


def cluster(*topics: TopicState, brokers: int = 1) -> ClusterTopics:
    return ClusterTopics(brokers=tuple(range(1, brokers + 1)), topics={state.name: state for state in topics})


def created(specs: list[TopicSpec], before: ClusterTopics) -> ClusterTopics:
    """Return the cluster after carrying out the plan, as Kafka would."""
    topics = dict(before.topics)
    for action in plan(specs, before):
        assert isinstance(action, CreateTopic)
        replicas = action.spec.replication_factor
        topics[action.spec.name] = TopicState(
            name=action.spec.name,
            partitions=tuple(partition(index, replicas=replicas) for index in range(action.partitions)),
            config={**DEFAULTS, **action.spec.config},
            overrides=action.spec.config,
        )
    return replace(before, topics=topics)


def specs(
    state: ClusterTopics,
    *processors: Processor[Any, Any],
    settings: Settings = SETTINGS,
    partitions: int | None = None,
) -> list[TopicSpec]:
    return specs_for(settings, processors or (TOTALS,), state, partitions=partitions)


GOOD = {"message_timestamp_type": "LogAppendTime"}
COMPACTED = GOOD | {"cleanup_policy": "compact"}


def world(**changes: TopicState) -> ClusterTopics:
    """Return a cluster on which nothing is wrong, but for the topics given by role."""
    states = {
        "source": topic("orders", 4, GOOD),
        "changelog": topic("shop-totals.v1-changelog", 4, COMPACTED),
        "emit": topic("big-customers", 2),
        "quarantine": topic("shop-quarantine", 4, GOOD, max_message_bytes="4194352"),
        "workers": topic("shop-workers", 1, COMPACTED),
        "skips": topic("shop-skips", 1, COMPACTED),
    }
    return cluster(*(states | changes).values())


def findings(
    state: ClusterTopics, settings: Settings = SETTINGS, *processors: Processor[Any, Any]
) -> list[TopicFinding]:
    return check(specs(state, *processors, settings=settings), state)


CHANGELOG = "shop-totals.v1-changelog"
