"""The changes by which every topic becomes as it must be. Pure.

`holdfast.clients.topics.admin` carries it out.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clients.topics.types import (
    AlterConfig,
    ClusterTopics,
    CreateTopic,
    TopicChange,
    TopicRole,
    TopicSpec,
    TopicState,
)
from holdfast.core.engine.declared.retention import is_shorter
from holdfast.errors import TopicError

_OURS = ("cleanup.policy", "compression.type", "message.timestamp.type", "min.insync.replicas")
ALTERABLE = {
    TopicRole.CHANGELOG: (*_OURS, "max.message.bytes"),
    TopicRole.CHOICES: (*_OURS, "retention.ms"),
    TopicRole.WORKERS: _OURS,
    TopicRole.SKIPS: _OURS,
    TopicRole.QUARANTINE: (
        "compression.type",
        "message.timestamp.type",
        "min.insync.replicas",
        "max.message.bytes",
    ),
    TopicRole.SOURCE: (
        "compression.type",
        "message.timestamp.type",
    ),  # the first only of those that are holdfast's own
    TopicRole.GLOBAL: ("message.timestamp.type", "retention.ms"),
    TopicRole.COORDINATION: ("compression.type", "message.timestamp.type"),
    TopicRole.EMIT: (),
    TopicRole.BETWEEN: (*_OURS, "retention.ms", "max.message.bytes"),
    TopicRole.BESIDE: ("compression.type",),
}
"""The configuration that `plan(..., alter=True)` sets right on existing topics.

Never what could delete a record that someone else wrote.
"""


def alterable(spec: TopicSpec) -> tuple[str, ...]:
    """Return the configuration that `plan(..., alter=True)` may set of an existing topic; a declared
    retention is only ever made longer.
    """
    return (*ALTERABLE[spec.role], *(() if spec.kept_ms is None else ("retention.ms", "retention.bytes")))


def plan(specs: Sequence[TopicSpec], cluster: ClusterTopics, *, alter: bool = False) -> list[TopicChange]:
    """Return the changes by which every topic exists, in order; with *alter* also those by which existing
    ones are laid out right.

    Nothing is planned that cannot be taken back: partition counts and replicas of existing topics stay. A
    topic without a partition count is a TopicError.
    """
    actions: list[TopicChange] = []
    for spec in specs:
        state = cluster.topics.get(spec.name)
        if state is None:
            actions.append(CreateTopic(spec=spec, partitions=_count(spec)))
        elif alter and (changes := _changes(spec, state)):
            actions.append(AlterConfig(topic=spec.name, config=changes))
    return actions


def _count(spec: TopicSpec) -> int:
    if spec.partitions is None:
        missing = spec.source or spec.name
        raise TopicError(
            f"topic {missing} does not exist and nothing tells how many partitions it should have: pass"
            " --partitions N"
        )
    return spec.partitions


def _changes(spec: TopicSpec, state: TopicState) -> dict[str, str]:
    # Asking for two copies in sync of a topic that has fewer would stop every write to it.
    keys = [
        key
        for key in dict.fromkeys(alterable(spec))
        if key in spec.config and (key != "min.insync.replicas" or state.replication_factor >= 3)
    ]
    return {
        key: spec.config[key]
        for key in keys
        if key in state.config and not _is_as_wanted(key, state.config[key], spec.config[key])
    }


def _is_as_wanted(key: str, found: str, wanted: str) -> bool:
    if key == "retention.ms":
        return not is_shorter(int(found), int(wanted))
    return int(found) >= int(wanted) if key == "max.message.bytes" else found == wanted
