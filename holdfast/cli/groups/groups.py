"""`holdfast groups`: describe claim groups and consumer groups, pause and resume them, set their offsets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated

import typer

from holdfast.cli.asked import INTERRUPTED, stopped_by_signals
from holdfast.cli.command_group import CommandGroup
from holdfast.cli.groups.lag import register_lag
from holdfast.cli.groups.simulate import simulate
from holdfast.cli.groups.tails import without_records
from holdfast.cli.logs import broker_logs
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import LAST_OFFSET, globals_of, output_of
from holdfast.cli.options.executing import ExecuteOption
from holdfast.cli.output import Cell, Output, OutputRow, note, number_of, show, show_json, utc
from holdfast.cli.waiting_origins import follows_time, waiting_partitions
from holdfast.clients.groups.admin import RESET_DEADLINE_S, GroupAdmin, ResetPlan
from holdfast.clients.groups.records import (
    GroupDescription,
    GroupKind,
    GroupPosition,
    MemberDescription,
    Move,
    ResetProgress,
    ResetStep,
    ShownState,
)
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.claims.resets import Aim, Where, parse_datetime_ms, parse_duration_ms, parse_scope
from holdfast.errors import BrokerError, ConfigError, HoldfastError, ResetStoppedError

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
broker_logs.register_committed(app)
register_lag(app)
app.command(
    "simulate",
    help="Show what an assignor does with a membership, and what a change would move. Connects to nothing.",
)(simulate)

LIST_COLUMNS = ("group", "type", "state", "#members", "#partitions", "held")
STATE_COLUMNS = (
    "group",
    "type",
    "coordinator",
    "assignment_strategy",
    "state",
    "#members",
    "paused_until",
    "resets",
)
MEMBER_COLUMNS = ("group", "consumer_id", "host", "client_id", "#partitions", "obeys_pause")
COLUMNS = (
    "group",
    "topic",
    "partition",
    "current_offset",
    "log_end_offset",
    "lag",
    "consumer_id",
    "host",
    "client_id",
)
LANE_COLUMNS = (*COLUMNS[:3], "lane", *COLUMNS[3:])
"""The columns for a group that works in lanes."""
MOVE_COLUMNS = ("group", "topic", "partition", "current_offset", "new_offset")
TIMEOUT_S = 10.0

GroupName = Annotated[str, typer.Argument(metavar="GROUP")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for a reply, in seconds.")
]
Type = Annotated[
    GroupKind | None,
    typer.Option(
        "--type", help="Which group is meant, if a claim group and a consumer group share the name."
    ),
]


def _open(context: typer.Context, timeout_s: float = TIMEOUT_S) -> GroupAdmin:
    return GroupAdmin(_settings(context), timeout_s=timeout_s)


def _settings(context: typer.Context) -> Settings:
    chosen = globals_of(context)
    return load_application(chosen.application, chosen.settings()).settings


# -- looking


@app.command(
    "list",
    help=(
        "List all groups: claim groups (in the coordination topic) and consumer groups (kept by the broker)."
    ),
)
def list_groups(
    context: typer.Context,
    kind: Annotated[GroupKind | None, typer.Option("--type", help="Only groups of this type.")] = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    with _open(context, timeout) as admin:
        survey = admin.survey()
    groups = [group for group in survey.groups if kind is None or group.kind is kind]
    _show([_group(group) for group in groups], LIST_COLUMNS, output_of(context))
    if not groups:
        note("there are no groups")
    _refuse_silence(groups, timeout)
    if survey.unlisted and kind is not GroupKind.CLAIM:
        raise BrokerError(survey.unlisted)


def _refuse_silence(groups: Sequence[GroupDescription], timeout_s: float) -> None:
    """Raise BrokerError where coordinators were silent: the list is not whole."""
    silent = [group for group in groups if group.state == ShownState.NO_ANSWER]
    if silent:
        who = sorted({group.coordinator or "one that no broker names" for group in silent})
        raise BrokerError(
            f"of {len(groups)} groups {len(silent)} are in state {ShownState.NO_ANSWER}: no answer within"
            f" {timeout_s:g} s from the coordinator {', '.join(who)}; check that broker"
        )


@app.command(
    help=(
        "Show a group's offset and lag in each partition, in the columns of kafka-consumer-groups (claims"
        " name no host); or its members, or its state."
    )
)
def describe(
    context: typer.Context,
    group: GroupName,
    members: Annotated[
        bool, typer.Option("--members", help="Show the members and their partition counts.")
    ] = False,
    state: Annotated[bool, typer.Option("--state", help="Show the state of the whole group.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--detail", help="More columns (so does -v): what members hold; epoch and age of a claim."
        ),
    ] = False,
    kind: Type = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    verbose = verbose or globals_of(context).verbose > 0
    if members and state:
        raise ConfigError("--members and --state: ask for one of them")
    settings = _settings(context)
    with GroupAdmin(settings, timeout_s=timeout) as admin:
        if state:
            _show([_group(admin.state(group, kind))], STATE_COLUMNS, output_of(context))
        elif members:
            found = admin.members(group, kind)
            more: tuple[str, ...] = ("assignment",) if verbose else ()
            claims = any(member.obeys_pause is not None for member in found)
            columns = _columns((*MEMBER_COLUMNS, *more), claims=claims)
            _show([_member(member) for member in found], columns, output_of(context))
            if not found:
                note(f"no member of group {group} holds a partition")
        else:
            positions = _without_markers(settings, admin.describe(group, kind), timeout)
            more = ("status", "owner_epoch", "heartbeat_age_s") if verbose else ()
            columns = COLUMNS if all(position.lane is None for position in positions) else LANE_COLUMNS
            columns = _columns((*columns, *more), claims=any(position.status for position in positions))
            _show([_position(position) for position in positions], columns, output_of(context))
            _note_waiting(context, group, timeout)


def _note_waiting(context: typer.Context, group: str, timeout_s: float) -> None:
    """Note the origins for which windows and joins of the application wait whose group is shown: they have no
    lag then, and yet no results.
    """
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    if group != application.settings.app or not follows_time(application):
        return
    try:
        for each in waiting_partitions(application, timeout_s):
            note(each.told)
    except HoldfastError as error:
        note(f"which origins windows and joins wait for is not known: {error}")


def _columns(names: tuple[str, ...], *, claims: bool) -> tuple[str, ...]:
    """Return the columns to show: claim groups have no host, for no frame of a claim names one."""
    return tuple(name for name in names if not (claims and name == "host"))


def _group(group: GroupDescription) -> OutputRow:
    return {
        "group": group.group,
        "type": group.kind.value,
        "state": group.state,
        "members": group.members,
        "partitions": group.partitions,
        "partitions_held": group.partitions_held,
        "coordinator": group.coordinator,
        "assignment_strategy": group.assignment_strategy,
        "paused_until_s": group.paused_until_s,
        "resets": list(group.resets),
    }


def _member(member: MemberDescription) -> OutputRow:
    assignment: dict[str, list[int]] = {}
    for topic, partition in member.assignment:
        assignment.setdefault(topic, []).append(partition)
    return {
        "group": member.group,
        "consumer_id": member.consumer_id,
        "host": member.host,
        "client_id": member.client_id,
        "partitions": len(member.assignment),
        "obeys_pause": member.obeys_pause,
        "assignment": assignment,
    }


def _without_markers(
    settings: Settings, positions: Sequence[GroupPosition], timeout_s: float
) -> list[GroupPosition]:
    """Return *positions*, those with no lag behind which nothing but markers lies."""
    tails = [
        ((each.topic, each.partition), each.current_offset, each.log_end_offset)
        for each in positions
        if each.lag and each.current_offset is not None and each.log_end_offset is not None
    ]
    done = without_records(settings, tails, timeout_s=timeout_s)
    return [
        (
            replace(each, lag=0)
            if each.lag and ((each.topic, each.partition), each.current_offset) in done
            else each
        )
        for each in positions
    ]


def _position(position: GroupPosition) -> OutputRow:
    return {
        **{name: getattr(position, name) for name in COLUMNS},
        "status": None if position.status is None else position.status.value,
        "owner_epoch": position.owner_epoch,
        "heartbeat_age_s": position.heartbeat_age_s,
        "lane": position.lane,
    }


def _show(records: Sequence[OutputRow], columns: Sequence[str], output: Output) -> None:
    show([_for_people(record) for record in records] if output is Output.TABLE else records, columns, output)


def _for_people(record: OutputRow) -> OutputRow:
    """Return the row of a table: counts headed as by Kafka's tool, readable times, assignments as that tool
    writes them.
    """
    assignment = record.get("assignment")
    columns: dict[str, Cell] = {
        "#members": record.get("members"),
        "#partitions": record.get("partitions"),
        "held": record.get("partitions_held"),
        "paused_until": utc(record.get("paused_until_s")),
    }
    if isinstance(assignment, dict):
        columns["assignment"] = [
            f"{topic}({','.join(map(str, numbers))})" for topic, numbers in assignment.items()
        ]
    return {**record, **columns}


# -- pausing


@app.command(
    help=(
        "Pause a claim group: its members give their claims back, and none claims before the time is over or"
        " you run `resume`."
    )
)
def pause(
    context: typer.Context,
    group: GroupName,
    lasts: Annotated[
        str, typer.Option("--for", metavar="DURATION", help="How long: 90s, 10m, 1h30m, PT10M.")
    ],
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    with _open(context, timeout) as admin:
        paused = admin.pause(group, parse_duration_ms(lasts) / 1000)
    until_s = paused.expires_at_s
    if output_of(context) is Output.JSON:
        show_json({"group": group, "paused_until_s": until_s, "by": paused.client_id})
    else:
        show(
            [{"group": group, "paused_until": utc(until_s), "by": paused.client_id}],
            ("group", "paused_until", "by"),
            Output.TABLE,
        )
    note(
        f"members give their claims back within a heartbeat interval: see `holdfast groups describe {group}"
        " --members`"
    )


@app.command(help="End the pause of a claim group, and finish or abandon an interrupted reset.")
def resume(
    context: typer.Context,
    group: GroupName,
    force: Annotated[
        bool, typer.Option("--force", help="Also end a reset whose administrator may still be running.")
    ] = False,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    with _open(context, timeout) as admin:
        freed = admin.resume(group, force=force)
    if output_of(context) is Output.JSON:
        show_json({"group": group, "paused_until_s": None, "freed_partitions": freed})
    else:
        show(
            [{"group": group, "state": "resumed", "freed_partitions": freed}],
            ("group", "state", "freed_partitions"),
            Output.TABLE,
        )


# -- resetting


@app.command(
    "reset-offsets",
    help=(
        "Set a group's offsets, for all of its partitions or none. Without --execute, only shows what it"
        " would do. A claim group is paused meanwhile; a consumer group must be empty."
    ),
)
def reset_offsets(
    context: typer.Context,
    group: GroupName,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the beginning of each partition.")
    ] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end of each partition.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, max=LAST_OFFSET, help="To this offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            metavar="TIME",
            help="To the first record of this time or later: 2026-11-21T08:30:00Z.",
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration",
            metavar="DURATION",
            help="To the first record of this long ago or later: 2h, PT30M.",
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option(
            "--shift-by",
            min=-LAST_OFFSET,
            max=LAST_OFFSET,
            help="Forwards by this many records, backwards if negative.",
        ),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", metavar="TOPIC[:P,P]", help="Only these partitions; may be repeated. Else all topics."
        ),
    ] = None,
    execute: ExecuteOption = False,
    wait: Annotated[
        float, typer.Option("--wait", min=1, max=86_400, help="Longest wait for the members, in seconds.")
    ] = RESET_DEADLINE_S,
    kind: Type = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    aim = _aim(to_earliest, to_latest, to_offset, to_datetime, by_duration, shift_by)
    scope = parse_scope(topic or ())
    with ExitStack() as stack:
        # Signals wait until the moves are shown: else a reset that was carried out may look as if it failed.
        stop = stack.enter_context(stopped_by_signals()) if execute else None
        admin = stack.enter_context(_open(context, timeout))
        plan = admin.plan_reset(group, aim, scope, kind)
        moves = plan.moves if stop is None else _carried_out(admin, plan, wait, stop)
        show([_move(move) for move in moves], MOVE_COLUMNS, output_of(context))
    if not execute:
        note("nothing was changed: this is what --execute would do as things stand")


def _carried_out(
    admin: GroupAdmin, plan: ResetPlan, wait_s: float, stop: threading.Event
) -> tuple[Move, ...]:
    try:
        return admin.reset_offsets(plan, deadline_s=wait_s, tell=_teller(), is_stopping=stop.is_set)
    except ResetStoppedError as error:
        if hasattr(error, "__notes__"):  # partitions are still held
            raise
        note(str(error))
        raise typer.Exit(INTERRUPTED) from None
    except HoldfastError as error:
        if stop.is_set():
            error.add_note("a signal had asked to give the reset up")
        raise


def _aim(
    earliest: bool,
    latest: bool,
    offset: int | None,
    moment: str | None,
    duration: str | None,
    shift: int | None,
) -> Aim:
    given: dict[Where, Aim] = {}
    if earliest:
        given[Where.EARLIEST] = Aim(Where.EARLIEST)
    if latest:
        given[Where.LATEST] = Aim(Where.LATEST)
    if offset is not None:
        given[Where.OFFSET] = Aim(Where.OFFSET, offset)
    if moment is not None:
        given[Where.DATETIME] = Aim(Where.DATETIME, parse_datetime_ms(moment))
    if duration is not None:
        given[Where.DURATION] = Aim(
            Where.DURATION, max(0, system_clock.now_ms() - parse_duration_ms(duration))
        )
    if shift is not None:
        given[Where.SHIFT] = Aim(Where.SHIFT, shift)
    if len(given) != 1:
        named = " and ".join(f"--{where.value}" for where in given) or "none"
        raise ConfigError(
            f"say where to by exactly one of {', '.join(f'--{where.value}' for where in Where)}; given:"
            f" {named}"
        )
    return next(iter(given.values()))


def _move(move: Move) -> OutputRow:
    return {name: getattr(move, name) for name in MOVE_COLUMNS}


def _teller() -> Callable[[ResetProgress], None]:
    """Return a callback that prints the steps of a reset: each line once, however often it is called."""
    last = ""

    def tell(progress: ResetProgress) -> None:
        nonlocal last
        if (line := _told(progress)) != last:
            note(line)
            last = line

    return tell


def _told(progress: ResetProgress) -> str:
    match progress.step:
        case ResetStep.WAITING:
            members = ", ".join(progress.waiting_for)
            return f"waiting for {members} to give back {number_of(progress.total, 'partition')}"
        case ResetStep.CLAIMING | ResetStep.MOVING:
            return f"{progress.step.value} {progress.done}/{progress.total}"
        case step:
            return step.value
