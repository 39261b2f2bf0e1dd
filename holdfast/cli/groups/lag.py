"""`holdfast groups lag`: which consumer groups of the cluster keep up, by the rules of Burrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated

import typer

from holdfast.cli.asked import stopped_by_signals
from holdfast.cli.groups.lag_page import LagPage
from holdfast.cli.groups.partition_lag import PartitionLag, of_groups
from holdfast.cli.logs.broker_logs import rows_of
from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.options.metrics_port import metrics_on, port_option
from holdfast.cli.output import Output, OutputRow, note, show, utc
from holdfast.cli.watching import WatchedLooks
from holdfast.clients.topics.admin import Admin
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.broker_logs.folds import place_of_key
from holdfast.core.broker_logs.lag import (
    RECENT_MS,
    CommitMade,
    LaggingCommit,
    LagStanding,
    RecentCommits,
    of_group,
    recent_commits,
    standing,
)
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import TopicError
from holdfast.terminal import printable

GROUP_COLUMNS = ("group", "status", "partitions", "lag", "worst")
PARTITION_COLUMNS = (
    "group",
    "topic",
    "partition",
    "status",
    "committed",
    "end",
    "lag",
    "commits",
    "committed_at",
)
WATCH_S = 30.0
Committed = Mapping[tuple[str, Place], Sequence[CommitMade]]


def lags(settings: Settings, *, clock: Clock = system_clock) -> list[PartitionLag]:
    """Return the lag and state of every group of the cluster, by `__consumer_offsets` as it is now.

    Partitions of topics that are gone, or that this principal may not see, are left out.
    """
    admin = Admin(settings)
    counts = admin.partition_counts()
    found = {
        (group, (topic, partition)): row.commits
        for group, topic, partition, row in _rows(settings)
        if partition < counts.get(topic, 0)
    }
    try:
        return _judged(admin, found, clock)
    except TopicError:  # one was deleted since: the others are reported all the same
        out: list[PartitionLag] = []
        for topic in sorted({place[0] for _, place in found}):
            with suppress(TopicError):
                out += _judged(admin, {key: each for key, each in found.items() if key[1][0] == topic}, clock)
        return sorted(out, key=lambda each: (each.group, each.place))


def _judged(admin: Admin, found: Committed, clock: Clock) -> list[PartitionLag]:
    ends = admin.stable_offsets({place for _, place in found})
    before = _lags_then(admin, found, ends)
    now_ms = clock.now_ms()
    behind = {place for (_, place), commits in found.items() if commits[-1].offset < ends[place]}
    recent = _recent_ends(admin, behind, now_ms)
    return [
        PartitionLag(
            group=group,
            place=place,
            standing=standing(
                before[group, place],
                lag=ends[place] - commits[-1].offset,
                now_ms=now_ms,
                recently_level=recent.get(place, ends[place]) <= commits[-1].offset,
            ),
            committed=commits[-1].offset,
            end=ends[place],
            commits=len(commits),
            committed_at_ms=commits[-1].at_ms,
        )
        for (group, place), commits in sorted(found.items())
    ]


def _recent_ends(admin: Admin, places: set[Place], now_ms: int) -> dict[Place, int]:
    """Return where partitions ended a short while ago, of those that have gone on since."""
    if not places:
        return {}
    then = admin.ends_at(dict.fromkeys(places, now_ms - RECENT_MS))
    return {place: end for place, end in then.items() if end is not None}


def _rows(settings: Settings) -> Iterator[tuple[str, str, int, RecentCommits]]:
    for _, key, row in rows_of(settings, recent_commits()):
        yield (*place_of_key(key), row)


def _lags_then(
    admin: Admin, found: Committed, ends: Mapping[Place, int]
) -> dict[tuple[str, Place], list[LaggingCommit]]:
    """Return each commit with the lag that it left, oldest first: the broker answers where partitions ended
    at those times.

    One question takes one time of each partition, so there are as many as the commits of all groups in one
    partition.
    """
    waiting: dict[Place, list[tuple[str, CommitMade]]] = {}
    for (group, place), commits in found.items():
        waiting.setdefault(place, []).extend((group, commit) for commit in commits)
    out: dict[tuple[str, Place], list[LaggingCommit]] = {key: [] for key in found}
    for number in range(max(map(len, waiting.values()), default=0)):
        asked = {place: each[number] for place, each in waiting.items() if number < len(each)}
        then = admin.ends_at({place: commit.at_ms for place, (_, commit) in asked.items()})
        for place, (group, commit) in asked.items():
            end = then.get(place)
            lag = max(0, (ends[place] if end is None else end) - commit.offset)
            out[group, place].append(LaggingCommit(commit.offset, commit.at_ms, lag))
    return out


def by_group(found: Sequence[PartitionLag]) -> list[OutputRow]:
    """Return a line for each group, the worst first."""
    lines: list[OutputRow] = []
    for group, of_it in of_groups(found):
        worst = max(of_it, key=lambda each: each.lag)
        lines.append(
            {
                "group": group,
                "status": (status := str(of_group(each.standing for each in of_it))),
                "standing": status,  # its old name
                "partitions": len(of_it),
                "lag": sum(each.lag for each in of_it),
                "worst": f"{worst.place[0]}-{worst.place[1]}" if worst.lag else None,
            }
        )
    order = [str(each) for each in (LagStanding.ERR, LagStanding.WARN, LagStanding.OK)]
    return sorted(lines, key=lambda line: order.index(str(line["status"])))


def by_partition(found: Sequence[PartitionLag]) -> list[OutputRow]:
    """Return a line for each partition of each group."""
    return [
        {
            "group": each.group,
            "topic": each.place[0],
            "partition": each.place[1],
            "status": str(each.standing),
            "standing": str(each.standing),  # its old name
            "committed": each.committed,
            "end": each.end,
            "lag": each.lag,
            "commits": each.commits,
            "committed_at": utc(each.committed_at_ms // 1000),
        }
        for each in found
    ]


def lag(
    context: typer.Context,
    group: Annotated[
        str | None, typer.Option("--group", help="This group alone, a line for each partition.")
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch",
            min=1,
            max=3600,
            metavar="SECONDS",
            help="Look again and again; print partitions whose status changes.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        port_option(
            "Watch, every 30 s unless --watch says otherwise, and serve metrics for Prometheus on this port"
            " of loopback."
        ),
    ] = None,
) -> None:
    settings, output = settings_of(context), output_of(context)
    with metrics_on(metrics_port) as metrics:
        watching = Watching(settings, group)
        _show(watching.found, group, output)
        if watch is not None or metrics_port is not None:
            metrics.register(watching.page)
            with stopped_by_signals() as stop:
                while not stop.wait(WATCH_S if watch is None else watch):
                    watching.look()
            return
    if any(each.standing is not LagStanding.OK for each in watching.found):
        raise typer.Exit(1)


def _show(found: Sequence[PartitionLag], group: str | None, output: Output) -> None:
    """Print the groups, or the partitions of the one *group* that was asked for."""
    if group is not None:
        show(by_partition(found), PARTITION_COLUMNS, output)
    else:
        show(by_group(found), GROUP_COLUMNS, output)
    if not found:
        note(
            "no group has committed an offset"
            if group is None
            else f"{group} has committed nothing that is still in the log"
        )


class Watching:
    """Looks at the groups again and again: prints partitions whose state changes, a line each, and updates
    *page*.
    """

    def __init__(self, settings: Settings, group: str | None, *, clock: Clock = system_clock) -> None:
        """Look for the first time; raises what keeps it from that."""
        self._settings, self._group, self._clock = settings, group, clock
        self._looks = WatchedLooks(clock=clock)
        found = self._looks.take(self._lags)
        assert found is not None, "a first look raises"
        self.found = found
        self.page = LagPage(found, clock.now_ms())

    def look(self) -> None:
        """Look once more."""
        now = self._looks.take(self._lags)
        if now is None:
            return
        before = {(each.group, each.place): each.standing for each in self.found}
        for each in now:
            was = before.get((each.group, each.place), LagStanding.OK)
            if each.standing is not was:
                topic, partition = each.place
                typer.echo(
                    f"{self._looks.when()}  {printable(each.group)}  {topic}-{partition}  {was} ->"
                    f" {each.standing}, lag {each.lag}"
                )
        self.found = now
        self.page.took(now, self._clock.now_ms())

    def _lags(self) -> list[PartitionLag]:
        return [each for each in lags(self._settings, clock=self._clock) if self._group in (None, each.group)]


def register_lag(app: typer.Typer) -> None:
    """Add the command to `holdfast groups`."""
    text = (
        "Show which consumer groups of the cluster keep up (OK, WARN, ERR; of a partition STOP, STALL,"
        " REWIND), by Burrow's rules over their last commits; exit code 1 where one does not."
    )
    app.command("lag", help=text)(lag)
