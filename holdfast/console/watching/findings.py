"""The faults in a picture of the application, the worst first, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode

from holdfast.clients.groups.records import GroupDescription, ShownState
from holdfast.console.watching.picture import PartitionHealth, Picture, TableLine, WorkerLine, WorkerState
from holdfast.console.watching.reports import HeldOriginReport

LIMIT_NAMED = 5
HELD_S, HELD_LAG_S = 60.0, 3_600.0
"""An origin is reported that has held windows or a join for so long, and lags by more event time."""
WAIT_FOR_ORIGIN = (
    "Wait while its records are read; see that the step, or the join, has an owner for that partition."
)


class Urgency(StrEnum):
    """The severity of a finding: CRITICAL is data that cannot be read or does not move."""

    CRITICAL = "critical"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One thing that is not well: what, what to do, and the page that shows it."""

    urgency: Urgency
    what: str
    cure: str
    page: str


_PARTITIONS = {
    PartitionHealth.SILENT: (
        Urgency.CRITICAL,
        "have an owner that does not answer",
        "Others take over when its session ends; if nothing changes, see its log and start it anew.",
    ),
    PartitionHealth.UNSERVED: (
        Urgency.CRITICAL,
        "are served by nobody",
        "Start workers, or wait until a rebalance ends: /health/ready of each worker says what it waits for.",
    ),
    PartitionHealth.STANDING: (
        Urgency.CRITICAL,
        "stand still",
        (
            "The partition's line says why. A batch that cannot be read is skipped with `holdfast quarantine"
            " skip`."
        ),
    ),
    PartitionHealth.STALLED: (
        Urgency.WARNING,
        "have records to fold and do not move",
        "See the log of the owner: a fold may wait or take very long.",
    ),
    PartitionHealth.RESTORING: (
        Urgency.WARNING,
        "are being restored",
        "Wait: standbys (`standbys = 1`) make the next time shorter.",
    ),
    PartitionHealth.BUILDING: (
        Urgency.NOTE,
        "are being built in a version that is not read yet",
        "Nothing: clients ask the current version until they have caught up.",
    ),
}


def findings(
    picture: Picture, groups: Iterable[GroupDescription] = (), beside: Iterable[HealthFinding] = ()
) -> list[HealthFinding]:
    """Return the faults, the worst first, including the findings *beside* those of the workers."""
    order = list(Urgency)
    found = [*_of_all(picture), *_of_workers(picture), *_of_tables(picture), *_of_groups(groups), *beside]
    return sorted(found, key=lambda each: order.index(each.urgency))


def _of_all(picture: Picture) -> Iterator[HealthFinding]:
    if picture.trouble is not None:
        yield HealthFinding(
            urgency=Urgency.CRITICAL,
            what=f"Kafka does not answer the console: {picture.trouble}",
            cure="What is shown is what was known before. Check bootstrap.servers and the brokers.",
            page="/",
        )
    if not any(each.state is not WorkerState.GONE for each in picture.workers):
        yield HealthFinding(
            urgency=Urgency.CRITICAL,
            what=f"No worker of {picture.app} runs",
            cure="Start one: holdfast -A MODULE worker.",
            page="/workers",
        )


def _of_workers(picture: Picture) -> Iterator[HealthFinding]:
    for each in picture.workers:
        if each.state is WorkerState.SILENT:
            yield _of_worker(each, Urgency.CRITICAL, "See its log, and whether it runs.")
        if each.state is WorkerState.UNREADY:
            yield _of_worker(each, Urgency.WARNING, "It says itself what it waits for.")


def _of_worker(line: WorkerLine, urgency: Urgency, cure: str) -> HealthFinding:
    page = "/workers/view?" + urlencode({"url": line.url})
    what = f"Worker {line.url} {'is ' if line.state is WorkerState.UNREADY else ''}"
    what += f"{'not ready: ' if line.state is WorkerState.UNREADY else ''}{line.cause}"
    return HealthFinding(urgency=urgency, what=what, cure=cure, page=page)


def _of_tables(picture: Picture) -> Iterator[HealthFinding]:
    for table in picture.tables:
        page = "/tables/view?" + urlencode({"name": table.table, "version": table.version})
        for state, (urgency, verb, cure) in _PARTITIONS.items():
            numbers = [each.partition for each in table.partitions if each.state is state]
            if numbers:
                # No client has to read a version that is not the current one.
                mild = urgency if table.current else Urgency.NOTE
                what = f"{_partitions(table, numbers)} {verb}"
                yield HealthFinding(urgency=mild, what=what, cure=cure, page=f"{page}&state=attention")
        yield from _of_origins(table, page)
        if partial := [each.partition for each in table.partitions if each.partial]:
            yield HealthFinding(
                urgency=Urgency.NOTE,
                what=(
                    f"{_partitions(table, partial)} are partial: records of their source were deleted before"
                    " they began"
                ),
                cure=(
                    "Nothing mends it; keep sources longer, or build from the lake with `holdfast bootstrap`."
                ),
                page=page,
            )


def _of_origins(table: TableLine, page: str) -> Iterator[HealthFinding]:
    """Yield the origins for which windows or joins wait longer than they should."""
    waiting: dict[str, list[int]] = {}
    for line in table.partitions:
        for held in line.held_back:
            if is_worth_telling(held):
                waiting.setdefault(held.named, []).append(line.partition)
    for named, numbers in waiting.items():
        yield HealthFinding(
            urgency=Urgency.WARNING,
            what=f"{_partitions(table, numbers)} wait for {named}",
            cure=WAIT_FOR_ORIGIN,
            page=page,
        )


def is_worth_telling(held: HeldOriginReport) -> bool:
    """Return whether windows or a join wait for an origin longer than its pace explains: for a minute, and it
    has said nothing or lags by the event time of the alert.
    """
    return held.held_s >= HELD_S and (held.lag_s is None or held.lag_s > HELD_LAG_S)


def _partitions(table: TableLine, numbers: list[int]) -> str:
    """Return partitions in words: all of them, or the first few by number."""
    name = f"{table.table} v{table.version}"
    if len(numbers) == len(table.partitions):
        return f"All {len(numbers)} partitions of {name}"
    shown = ", ".join(map(str, numbers[:LIMIT_NAMED]))
    more = f" and {len(numbers) - LIMIT_NAMED} more" if len(numbers) > LIMIT_NAMED else ""
    return f"{len(numbers)} of {len(table.partitions)} partitions of {name} ({shown}{more})"


def _of_groups(groups: Iterable[GroupDescription]) -> Iterator[HealthFinding]:
    for each in groups:
        page = "/groups/view?" + urlencode({"kind": each.kind, "name": each.group})
        if each.state == ShownState.PAUSED:
            yield HealthFinding(
                urgency=Urgency.WARNING,
                what=f"Claim group {each.group} is paused",
                cure=f"holdfast groups resume {each.group} lets it go on.",
                page=page,
            )
        elif each.state == ShownState.RESETTING:
            yield HealthFinding(
                urgency=Urgency.WARNING,
                what=f"Claim group {each.group} is being reset ({', '.join(each.resets)})",
                cure="Wait. If who resets it is gone, holdfast groups resume settles it.",
                page=page,
            )
        elif each.kind == "claim" and each.members and each.partitions_held < each.partitions:
            free = each.partitions - each.partitions_held
            yield HealthFinding(
                urgency=Urgency.WARNING,
                what=(
                    f"Claim group {each.group} works on {each.partitions_held} of {each.partitions}"
                    f" partitions: {free} are held by nobody"
                ),
                cure=(
                    "A member claims them within two heartbeats; if not, start more members or raise their"
                    " limit."
                ),
                page=page,
            )
