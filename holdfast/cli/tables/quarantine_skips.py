"""`holdfast quarantine skip | skips`: unreadable offsets of a source, which the application leaves out, and
records before which a processor has stopped.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import LAST_OFFSET, LAST_PARTITION, globals_of, output_of
from holdfast.cli.options.executing import ExecuteOption
from holdfast.cli.output import Cell, Output, note, show, show_json, utc

if TYPE_CHECKING:
    from holdfast.clients.quarantine.skips import AllowancePlan, SkipPlan, SkipRequests
    from holdfast.core.engine.fold.skips import Skip

TIMEOUT_S = 30.0
LIMIT_REASON = 80
COLUMNS = ("topic", "partition", "first", "last", "state", "error", "reason", "by", "at")

TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for a reply, in seconds.")
]


def register_skips(app: typer.Typer) -> None:
    """Add the commands to `holdfast quarantine`."""
    app.command(
        "skip",
        help=(
            "Ask the workers to skip an unreadable batch of a source. Without --execute, only show what would"
            " be skipped. Every table, version and replay of the application leaves out skipped offsets for"
            " ever. For a readable record, let the processors that stop before it quarantine it"
            ' (on_error="stop").'
        ),
    )(skip)
    app.command(
        "skips",
        help=(
            "List the skipped offsets of the application's sources, and the requests that no worker has"
            " executed yet."
        ),
    )(skips)


def _open(context: typer.Context, timeout_s: float) -> SkipRequests:
    from holdfast.clients.quarantine.skips import SkipRequests

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    stopping: dict[str, list[str]] = {}
    for each in application.processors:
        if each.on_error == "stop":
            for topic in (*each.topics, *each.choices_topics(application.settings.app)):
                stopping.setdefault(topic, []).append(each.name)
    return SkipRequests(application.settings, application.read_topics, stopping=stopping, timeout_s=timeout_s)


def skip(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, max=LAST_PARTITION)],
    offset: Annotated[
        int,
        typer.Argument(
            metavar="OFFSET",
            min=0,
            max=LAST_OFFSET,
            help=(
                "The offset at which the partition stands; readiness names it. Of a topic of choices, the"
                " number of the tick's choice."
            ),
        ),
    ],
    execute: ExecuteOption = False,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    skipping = _open(context, timeout)
    known = skipping.skips()
    if (allowance := asyncio.run(skipping.allowance(topic, partition, offset, known))) is not None:
        allowed = skipping.allow(allowance, by=_person()) if execute else None
        _tell_allowed(allowance, allowed, output_of(context))
        return
    plan = asyncio.run(skipping.plan(topic, partition, offset, known))
    asked = skipping.ask(plan, by=_person()) if execute else None
    _tell(plan, asked, output_of(context))


def _person() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        name = str(os.getuid())
    return f"{name}@{socket.gethostname()}"


def _tell_allowed(plan: AllowancePlan, allowed: Skip | None, output: Output) -> None:
    cells: dict[str, Cell] = {
        "topic": plan.topic,
        "partition": plan.partition,
        "offset": plan.offset,
        "processors": ",".join(plan.processors),
        "action": "would allow" if allowed is None else "allowed",
        "by": None if allowed is None else allowed.by,
    }
    if output is Output.JSON:
        show_json(cells)
    else:
        show([{"name": name, "value": cell} for name, cell in cells.items()], ("name", "value"), output)
    if plan.asked:
        note("it was allowed before")
    if allowed is None:
        note(
            "nothing was changed; add --execute to let the record go to the quarantine, where a fold"
            " refuses it"
        )
    else:
        note(
            "a partition that has stopped before it goes on within some seconds, and `holdfast quarantine"
            " list` shows the record; where a fold takes it, as a mended one does, nothing is quarantined"
        )


def _tell(plan: SkipPlan, asked: Skip | None, output: Output) -> None:
    batch = plan.batch
    cells: dict[str, Cell] = {
        "topic": batch.topic,
        "partition": batch.partition,
        "first": batch.first,
        "last": batch.last,
        "error": batch.error,
        "reason": batch.reason,
        "codec": batch.codec,
        "size_bytes": batch.size_bytes,
        "records": batch.records_count,
        "records_before": plan.before,
        "producer": None if batch.producer_id < 0 else f"{batch.producer_id}/{batch.producer_epoch}",
        "action": "would ask" if asked is None else "asked",
        "by": None if asked is None else asked.by,
    }
    if output is Output.JSON:
        show_json(cells)
    else:
        show(
            [{"name": name.replace("_", "-"), "value": cell} for name, cell in cells.items()],
            ("name", "value"),
            output,
        )
    if plan.asked is not None:
        note(
            f"{plan.asked.by or 'somebody'} asked for it {_when(plan.asked)}, and no worker has met it yet:"
            " does one own the partition?"
        )
    if asked is None:
        note("nothing was asked for; add --execute to have it skipped, for good and by every replay")
        return
    note(
        "a worker that stands before it goes on within some seconds: its readiness says so no more, `holdfast"
        " quarantine skips` shows it as made, and `holdfast quarantine list` what was left out"
    )


def _when(skip: Skip) -> str:
    from holdfast.clients.quarantine.skips import when

    return when(skip.at_ms)


def skips(context: typer.Context, timeout: TimeoutOption = TIMEOUT_S) -> None:
    skipping = _open(context, timeout)
    known, output = skipping.skips(), output_of(context)
    found = [_record(each, output) for each in known.all()]
    found += [{**_record(each, output), "state": "other topic"} for each in known.of_others]
    show(found, COLUMNS, output)
    if known.of_others:
        note(
            "skips of another topic leave out nothing: the topic with this name was deleted and made again"
            " since"
        )
    if not found:
        note(f"nothing is skipped: {skipping.topic} is empty")


def _record(skip: Skip, output: Output) -> dict[str, Cell]:
    reason = " ".join(skip.reason.split())
    short = reason if len(reason) <= LIMIT_REASON else reason[: LIMIT_REASON - 1] + "…"
    cells: dict[str, Cell] = {
        "topic": skip.topic,
        "partition": skip.partition,
        "first": skip.first,
        "last": skip.last,
        "state": "made" if skip.made else "allowed" if skip.allowed else "asked",
        "error": skip.error,
        "reason": skip.reason if output is Output.JSON else short,
        "by": skip.by,
        "at_ms": skip.at_ms,
        "topic_id": skip.topic_id or None,
    }
    return (
        cells
        if output is Output.JSON
        else {**cells, "at": utc(skip.at_ms // 1000) if skip.at_ms >= 0 else None}
    )
