"""`holdfast outbox harvest`, and the commands for harvesters: pause, resume, flush, harvesters."""

from __future__ import annotations

import logging
import signal
import threading
from concurrent.futures import Future
from typing import Annotated, Any

import typer
from prometheus_client import CollectorRegistry

from holdfast.agents.services.harvester_page import HarvesterPage
from holdfast.cli.asked import StopRequest
from holdfast.cli.options.context import globals_of, output_of, settings_of
from holdfast.cli.options.metrics_port import MetricsPortOption, metrics_on
from holdfast.cli.output import OutputRow, note, show
from holdfast.errors import BrokerError
from holdfast.outbox.commands import Verb, tell
from holdfast.outbox.harvest.harvester import STOP_S, Harvester
from holdfast.outbox.settings import HarvestSettings, harvest_settings
from holdfast.tracing.exporting import Exporting

DatabaseOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The database with the outbox; default: setting outbox_database."),
]
Name = Annotated[
    str | None,
    typer.Option(
        "--name", help="The outbox's name, never to change; default: setting outbox_name, else <app>-outbox."
    ),
]
Shards = Annotated[
    int | None,
    typer.Option(
        "--shards", help="Leaders of the outbox, equal in all harvesters; default: setting outbox_shards."
    ),
]
TURN_S = 0.25
UNASKED = "unasked:"  # commands to harvesters need no database


def harvest(
    context: typer.Context,
    database: DatabaseOption = None,
    name: Name = None,
    shards: Shards = None,
    table: Annotated[str | None, typer.Option("--table", help="The outbox table.")] = None,
    layout: Annotated[
        str | None,
        typer.Option("--layout", help="The layout of its columns: holdfast, goharvest or debezium."),
    ] = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", help="fenced: exactly once; mark: as goharvest.")
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(
            "--instance", help="This process's name among the harvesters; default: host and process id."
        ),
    ] = None,
    interop: Annotated[
        bool,
        typer.Option("--interop", help="Share the election with goharvest processes (with --strategy mark)."),
    ] = False,
    leader_topic: Annotated[
        str | None, typer.Option("--leader-topic", help="The election's topic; default: <name>.neli.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", help="The election's consumer group; default: <name>.harvesters.")
    ] = None,
    metrics_port: MetricsPortOption = None,
) -> None:
    given: dict[str, Any] = {
        "database": database,
        "name": name,
        "shards": shards,
        "table": table,
        "layout": layout,
        "strategy": strategy,
    }
    more: dict[str, Any] = {
        "instance": instance,
        "interop": interop,
        "leader_topic": leader_topic,
        "group_id": group,
    }
    settings = harvest_settings(settings_of(context), **given, **more)
    if not globals_of(context).verbose:
        # Beginnings and ends of troubles are logged at WARNING.
        logging.getLogger("holdfast.outbox").setLevel(logging.WARNING)
    with metrics_on(
        metrics_port
    ) as metrics:  # before the election: a process that cannot begin must not win a shard
        _harvest(settings, metrics)


def _harvest(settings: HarvestSettings, metrics: CollectorRegistry) -> None:
    """Harvest until a signal asks to stop."""
    stop = StopRequest()
    before = {
        number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)
    }
    harvester, exporting = Harvester(settings), Exporting(settings.name)
    metrics.register(HarvesterPage(harvester))
    try:
        exporting.start()
        if _started(harvester, stop):
            note(
                f"harvesting {settings.name} (table {settings.table}, strategy {settings.strategy}); stop"
                " with Ctrl-C"
            )
        while not stop.wait(TURN_S):
            harvester.wait(0)
    finally:
        harvester.stop(STOP_S)
        exporting.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    note(f"stopped: {sum(stats.published for stats in harvester.stats)} row(s) published")


def _started(harvester: Harvester, stop: StopRequest) -> bool:
    """Start it in a thread of its own, so that a silent broker does not keep the user from stopping it;
    return whether it has started.
    """
    starting = Future[Harvester]()

    def start() -> None:
        try:
            starting.set_result(harvester.start())
        except BaseException as error:  # noqa: BLE001  the thread that waits raises it
            starting.set_exception(error)

    threading.Thread(target=start, name="holdfast-outbox-start", daemon=True).start()
    while not stop.wait(TURN_S / 10):
        if starting.done():
            starting.result()
            return True
    return False


def _ask_leaders(
    context: typer.Context, verb: Verb, name: str | None, shards: int | None, timeout: float
) -> None:
    settings: HarvestSettings = harvest_settings(
        settings_of(context), database=UNASKED, name=name, shards=shards
    )
    answers = tell(settings, verb, timeout)
    records: list[OutputRow] = [
        {
            "shard": answer.shard,
            "leader": answer.leader,
            "epoch": answer.epoch,
            "paused": answer.paused,
            "stopped": answer.stopped,
            "published": answer.published,
            "quarantined": answer.quarantined,
            "in_flight": answer.in_flight,
            "held_topics": answer.waiting_topics,
            "last_error": answer.last_error,
        }
        for answer in answers
    ]
    show(
        records,
        (
            "shard",
            "leader",
            "epoch",
            "paused",
            "stopped",
            "published",
            "quarantined",
            "in_flight",
            "held_topics",
            "last_error",
        ),
        output_of(context),
    )
    if len(answers) < settings.shards:
        raise BrokerError(
            f"{len(answers)} of {settings.shards} shard(s) of {settings.name} answered within {timeout:g} s;"
            " the others have no leader now"
        )


TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=600, help="Seconds to wait for the leaders' answers.")
]


def pause(
    context: typer.Context, name: Name = None, shards: Shards = None, timeout: TimeoutOption = 10.0
) -> None:
    _ask_leaders(context, Verb.PAUSE, name, shards, timeout)


def resume(
    context: typer.Context, name: Name = None, shards: Shards = None, timeout: TimeoutOption = 10.0
) -> None:
    _ask_leaders(context, Verb.RESUME, name, shards, timeout)


def flush(
    context: typer.Context, name: Name = None, shards: Shards = None, timeout: TimeoutOption = 10.0
) -> None:
    _ask_leaders(context, Verb.FLUSH, name, shards, timeout)


def harvesters(
    context: typer.Context, name: Name = None, shards: Shards = None, timeout: TimeoutOption = 10.0
) -> None:
    _ask_leaders(context, Verb.STATUS, name, shards, timeout)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `holdfast outbox`."""
    for call, text in (
        (
            harvest,
            (
                "Publish the outbox's rows until stopped: take part in the election, and lead the shards that"
                " this process wins."
            ),
        ),
        (pause, "Stop the harvesters from publishing until `resume`; later leaders obey it too."),
        (resume, "Let the harvesters publish again."),
        (flush, "Make the harvesters retry the rows that they hold back at once."),
        (harvesters, "Show the state of each shard's leader."),
    ):
        app.command(help=text)(call)
