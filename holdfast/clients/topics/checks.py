"""Finds the faults of existing topics, and the remedy of each. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from holdfast.clients.topics.plan import alterable
from holdfast.clients.topics.specs import DEFAULT_MESSAGE_BYTES
from holdfast.clients.topics.types import (
    ClusterTopics,
    Processors,
    Severity,
    TopicFinding,
    TopicRole,
    TopicSpec,
    TopicState,
)
from holdfast.config import Settings
from holdfast.core.engine.declared.chains import why_broken
from holdfast.core.engine.declared.retention import configured_ms, is_shorter, spoken


def check(specs: Sequence[TopicSpec], cluster: ClusterTopics) -> list[TopicFinding]:
    """Return the faults of the topics of an application, errors first."""
    findings = [finding for spec in specs for finding in _check_one(spec, cluster)]
    return sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR)


def check_processors(settings: Settings, processors: Processors) -> list[TopicFinding]:
    """Return the faults in the wiring of processors to topics, whatever the cluster looks like."""
    findings = []
    taken = {
        settings.quarantine_topic,
        settings.workers_topic,
        settings.skips_topic,
        settings.reset_topic,
        *(processor.changelog(settings.app) for processor in processors),
        *(topic for processor in processors for topic in processor.choices_topics(settings.app)),
    }
    findings += [
        TopicFinding(severity=Severity.ERROR, topic=topic, message="breaks a chain", remedy=why, chain=True)
        for topic, why in why_broken(processors)
    ]
    for processor in processors:
        if settings.coordination_topic in processor.emits:
            message = (
                f"processor {processor.name} emits to it in transactions; clients of the Marshal protocol"
                " hang on their markers"
            )
            findings.append(
                TopicFinding.error(settings.coordination_topic, message, "emit to a topic of its own")
            )
        for topic in {*processor.topics, *processor.emits, *(each.topic for each in processor.reads)} & taken:
            message = f"processor {processor.name} reads or emits to a topic that holdfast keeps for itself"
            findings.append(TopicFinding.error(topic, message, "choose another topic"))
    return findings


def _check_one(spec: TopicSpec, cluster: ClusterTopics) -> Iterator[TopicFinding]:
    state = cluster.topics.get(spec.name)
    if state is None:
        remedy = f"run `holdfast topics create{'' if spec.partitions else ' --partitions N'}`"
        if spec.role is TopicRole.SKIPS:  # an application made before there was one runs without it
            yield TopicFinding.warning(
                spec.name, "does not exist: no batch that cannot be read can be skipped", remedy
            )
            return
        yield TopicFinding.error(spec.name, f"does not exist ({spec.role})", remedy)
        return
    if spec.role is TopicRole.BESIDE:
        yield from _check_compression(spec, state)
        return
    yield from _check_partitions(spec, state, cluster)
    yield from _check_cleanup(spec, state)
    yield from _check_retention(spec, state)
    yield from _check_time(spec, state)
    yield from _check_compression(spec, state)
    yield from _check_replicas(spec, state)
    wanted, size = spec.config.get("max.message.bytes"), state.config.get("max.message.bytes")
    if size is not None and int(size) < spec.takes_bytes:
        what = "row" if spec.role is TopicRole.CHANGELOG else "record"
        message = (
            f"max.message.bytes is {size}, and a fold may write a {what} that takes {spec.takes_bytes}: a"
            " partition would stand still at it"
        )
        yield TopicFinding.error(
            spec.name, message, _alter(spec, f"max.message.bytes={DEFAULT_MESSAGE_BYTES}")
        )
    elif (
        spec.role is TopicRole.QUARANTINE
        and wanted is not None
        and size is not None
        and int(size) < int(wanted)
    ):
        message = f"max.message.bytes is {size}, so the largest records are quarantined without their value"
        yield TopicFinding.warning(spec.name, message, _alter(spec, f"max.message.bytes={wanted}"))


def _check_partitions(spec: TopicSpec, state: TopicState, cluster: ClusterTopics) -> Iterator[TopicFinding]:
    count = len(state.partitions)
    yield from _check_copartitioned(spec, count, cluster)
    if spec.role is TopicRole.CHOICES and spec.partitions is not None and count != spec.partitions:
        message = (
            f"has {count} partitions but its source {spec.source} has {spec.partitions}; the choices of a"
            " partition live in the same one here"
        )
        if count < spec.partitions:
            remedy = f"run kafka-topics --alter --topic {spec.name} --partitions {spec.partitions}"
        else:
            remedy = f"give the processor another name, which has choices of its own, and delete {spec.name}"
        yield TopicFinding.error(spec.name, message, remedy)
    if spec.role is TopicRole.CHANGELOG and spec.partitions is not None and count != spec.partitions:
        message = (
            f"has {count} partitions but its source {spec.source} has {spec.partitions}; rows of a source"
            " partition live in the same one here"
        )
        remedy = (
            f"give the processor a new version, or delete {spec.name}, run `holdfast topics create` and let"
            " the state be rebuilt"
        )
        yield TopicFinding.error(spec.name, message, remedy)
    if (
        spec.role is TopicRole.EMIT
        and spec.source is not None
        and spec.partitions is not None
        and count < spec.partitions
    ):
        message = (
            f"has {count} partitions but {spec.source} has {spec.partitions}, and each record goes on into"
            " the partition it came by"
        )
        yield TopicFinding.error(
            spec.name, message, f"run kafka-topics --alter --topic {spec.name} --partitions {spec.partitions}"
        )
    if spec.role in (TopicRole.WORKERS, TopicRole.SKIPS) and count != 1:
        yield TopicFinding.error(
            spec.name,
            f"has {count} partitions instead of 1",
            f"delete {spec.name} and run `holdfast topics create`",
        )
    lost = [partition.partition for partition in state.partitions if partition.leader is None]
    if lost:
        yield TopicFinding.error(
            spec.name, f"partitions {lost} have no leader", "bring back the brokers that hold their replicas"
        )


def _check_copartitioned(spec: TopicSpec, count: int, cluster: ClusterTopics) -> Iterator[TopicFinding]:
    """Yield an error for each topic that the same processor folds and that has more partitions: it is this
    one that partitions can be added to.
    """
    for other, name in spec.beside.items():
        wanted = cluster.partitions(other)
        if wanted is None or wanted <= count:
            continue
        message = (
            f"has {count} partitions but {other} has {wanted}, and processor {name} folds partition n of both"
            " into one table; records of one key must lie in the same partition of each"
        )
        remedy = (
            f"make both of {wanted}: while {spec.name} is empty run kafka-topics --alter --topic {spec.name}"
            f" --partitions {wanted}, else have its producers (or a processor with emits) write it to a new"
            " topic of as many, and fold that"
        )
        yield TopicFinding.error(spec.name, message, remedy)


def _check_cleanup(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    policy = state.config.get("cleanup.policy")
    if policy is None:
        return
    if spec.role in (TopicRole.CHANGELOG, TopicRole.WORKERS, TopicRole.SKIPS) and policy != "compact":
        lost = "rows that do not change would be deleted in time and missing after a restore"
        if spec.role is TopicRole.SKIPS:
            lost = (
                "skips would be deleted in time, and what they leave out would stop its partition, or be"
                " read, again"
            )
        yield TopicFinding.error(
            spec.name, f"cleanup.policy is {policy}: {lost}", _alter(spec, "cleanup.policy=compact")
        )
    if spec.role is TopicRole.CHOICES and "compact" in policy:
        message = (
            f"cleanup.policy is {policy}: choices would disappear, and without all of them nobody can fold"
            " the sources again"
        )
        yield TopicFinding.error(spec.name, message, _alter(spec, "cleanup.policy=delete"))
    if spec.role is TopicRole.COORDINATION and "compact" in policy:
        message = (
            f"cleanup.policy is {policy}: frames without a key are refused there, and claims could not be"
            " replayed"
        )
        yield TopicFinding.error(spec.name, message, _alter(spec, "cleanup.policy=delete"))
    undeclared = spec.kept_ms is None
    if undeclared and spec.role in (TopicRole.SOURCE, TopicRole.EMIT):
        yield from _check_whole(spec, state, policy)
    elif (
        undeclared
        and spec.config.get("retention.ms") == "-1"
        and state.config.get("retention.ms", "-1") != "-1"
    ):
        lost = "what is built anew from the rest would forget names, epochs or what is done"
        if spec.role is TopicRole.BETWEEN:
            lost = "records would be deleted in time, and no table behind them could be folded again"
        if spec.role is TopicRole.GLOBAL:
            lost = (
                "records would be deleted in time, and folds that looked into the global table could not be"
                " folded again"
            )
        if spec.role is TopicRole.CHOICES:
            lost = (
                "choices would be deleted in time, and without all of them nobody can fold the sources again"
            )
        message = f"retention.ms is {state.config['retention.ms']}: {lost}"
        yield TopicFinding.warning(spec.name, message, _alter(spec, "retention.ms=-1"))
    if spec.role is TopicRole.GLOBAL and undeclared and "compact" in policy:
        message = (
            f"cleanup.policy is {policy}: what the global table held at a recorded position disappears from"
            " its history, so a replay, a new version and verify may see other rows than live folds did"
        )
        yield TopicFinding.warning(spec.name, message, _alter(spec, "cleanup.policy=delete"))
    if spec.role in (TopicRole.SOURCE, TopicRole.BETWEEN) and undeclared and "compact" in policy:
        message = (
            f"cleanup.policy is {policy}: records disappear from its history, so a rebuild or a replay may"
            " give other rows"
        )
        yield TopicFinding.warning(spec.name, message, _alter(spec, "cleanup.policy=delete"))


def _check_whole(spec: TopicSpec, state: TopicState, policy: str) -> Iterator[TopicFinding]:
    """Yield a warning for each limit of a topic that tables are folded from: they live longer than its
    records.
    """
    if "delete" not in policy:
        return
    for key in ("retention.ms", "retention.bytes"):
        limit = state.config.get(key, "-1")
        if spec.config.get(key) != "-1" or limit == "-1":
            continue
        shown = f"{limit} ({spoken(int(limit))})" if key == "retention.ms" else limit
        message = (
            f"{key} is {shown}: tables live longer than its records, and a version that begins later does not"
            " see those gone by then; it is partial"
        )
        declare = (
            f', or declare retention="{spoken(int(limit))}" if that is meant' if key == "retention.ms" else ""
        )
        yield replace(
            TopicFinding.warning(spec.name, message, f"{_alter(spec, f'{key}=-1')}{declare}"), limited=True
        )


def _check_retention(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    """Yield how a topic differs from its declared retention: an error where records that are folded go
    earlier.
    """
    kept_ms = spec.kept_ms
    if kept_ms is None:
        return
    wanted_ms, declared = configured_ms(kept_ms), f"declared is {spoken(kept_ms)}"
    told = TopicFinding.warning if spec.role is TopicRole.EMIT else TopicFinding.error
    lost = f"{declared}: records are gone earlier, and what is folded from them cannot be built again"
    policy = state.config.get("cleanup.policy", "delete")
    if "compact" in policy:
        message = f"cleanup.policy is {policy}, and {lost}"
        yield told(spec.name, message, _alter(spec, "cleanup.policy=delete"))
    if "delete" not in policy:
        return  # it keeps the last record of each key, however old
    found_ms = int(state.config.get("retention.ms", wanted_ms))
    if is_shorter(found_ms, wanted_ms):
        message = f"retention.ms is {found_ms} ({spoken(found_ms)}), and {lost}"
        yield told(spec.name, message, _alter(spec, f"retention.ms={wanted_ms}"))
    elif found_ms != wanted_ms:
        # Nothing of ours shortens it: that deletes records.
        shorten = _set_by_hand(spec, f"retention.ms={wanted_ms}")
        message = (
            f"retention.ms is {found_ms} ({spoken(found_ms)}), and {declared}: records are kept longer than"
            " that"
        )
        yield TopicFinding.warning(
            spec.name, message, f'declare retention="{spoken(found_ms)}", or run {shorten}'
        )
    if (size := state.config.get("retention.bytes", "-1")) != "-1":
        message = f"retention.bytes is {size}, and {lost}"
        yield told(spec.name, message, _alter(spec, "retention.bytes=-1"))


def _check_time(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    kind = state.config.get("message.timestamp.type")
    stamped = (TopicRole.SOURCE, TopicRole.COORDINATION, TopicRole.BETWEEN, TopicRole.GLOBAL)
    if spec.role in stamped and kind not in (None, "LogAppendTime"):
        message = (
            f"message.timestamp.type is {kind}: `at_ms` is then the clock of whoever produced the record,"
            " which may be wrong or go back"
        )
        yield TopicFinding.warning(spec.name, message, _alter(spec, "message.timestamp.type=LogAppendTime"))


def _check_compression(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    wanted, found = spec.config.get("compression.type"), state.config.get("compression.type")
    if wanted is not None and found not in (None, wanted):
        message = (
            f"compression.type is {found}: whoever may write there can put a batch in it that its readers"
            " cannot unpack, and hold them up"
        )
        yield TopicFinding.warning(spec.name, message, _alter(spec, f"compression.type={wanted}"))


def _check_replicas(spec: TopicSpec, state: TopicState) -> Iterator[TopicFinding]:
    found = state.replication_factor
    if found < spec.replication_factor:
        message = (
            f"has {found} replica(s) instead of {spec.replication_factor}: losing a broker may lose records"
        )
        yield TopicFinding.warning(
            spec.name, message, "add replicas with kafka-reassign-partitions, or lower replication_factor"
        )
    required = int(state.config.get("min.insync.replicas", 1))
    if required > found:
        message = f"min.insync.replicas is {required} with {found} replica(s): no write can succeed"
        yield TopicFinding.error(spec.name, message, _alter(spec, f"min.insync.replicas={max(1, found - 1)}"))
    elif found >= 3 and required < 2:
        message = f"min.insync.replicas is {required}: a record counts as written with one copy"
        yield TopicFinding.warning(spec.name, message, _alter(spec, "min.insync.replicas=2"))
    behind = [
        partition.partition
        for partition in state.partitions
        if len(partition.in_sync) < len(partition.replicas)
    ]
    if behind:
        yield TopicFinding.warning(
            spec.name,
            f"partitions {behind} have replicas that are not in sync",
            "look at the brokers that hold them",
        )
    if spec.role is not TopicRole.EMIT and state.config.get("unclean.leader.election.enable") == "true":
        message = "unclean.leader.election.enable is true: records that were acknowledged may be lost"
        yield TopicFinding.warning(spec.name, message, _alter(spec, "unclean.leader.election.enable=false"))


def _alter(spec: TopicSpec, assignment: str) -> str:
    remedy = _set_by_hand(spec, assignment)
    key, _, value = assignment.partition("=")
    ours = key in alterable(spec) and spec.config.get(key) == value
    return f"run `holdfast topics create --alter` or {remedy}" if ours else f"run {remedy}"


def _set_by_hand(spec: TopicSpec, assignment: str) -> str:
    return (
        f"kafka-configs --bootstrap-server HOST:PORT --alter --entity-type topics --entity-name {spec.name}"
        f" --add-config {assignment}"
    )
