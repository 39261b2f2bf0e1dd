"""`holdfast acls`: the least rights that each role needs on a cluster with ACLs."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import show
from holdfast.clients.topics.grants import (
    administrator_grants,
    claim_client_grants,
    reader_grants,
    replayer_grants,
    resetter_grants,
    worker_grants,
)
from holdfast.core.kafka.grants import Grant, kafka_acls
from holdfast.errors import ConfigError

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)

Principal = Annotated[
    str | None,
    typer.Option(
        "--principal",
        metavar="User:NAME",
        help="Print arguments for Kafka's kafka-acls that grant these rights to NAME.",
    ),
]
Topics = Annotated[
    list[str], typer.Option("--topic", help="A topic that it consumes or publishes to; may be repeated.")
]


def _show(context: typer.Context, grants: list[Grant], principal: str | None) -> None:
    if principal is not None:
        if not re.fullmatch(r"\w+:.+", principal):
            raise ConfigError(
                f"--principal {principal!r}: Kafka's principals have a type before the name: write"
                f" User:{principal}"
            )
        for line in kafka_acls(grants, principal):
            print(line)
        return
    records = [
        {
            "resource": str(each.resource),
            "name": each.name,
            "pattern": str(each.pattern),
            "operation": str(each.operation),
            "why": each.why,
        }
        for each in grants
    ]
    show(records, ("resource", "name", "pattern", "operation", "why"), output_of(context))


@app.command(help="A worker of the application: its sources, changelogs, emits, and the group.")
def worker(context: typer.Context, principal: Principal = None) -> None:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    _show(context, worker_grants(application.settings, application.processors, application.faust), principal)


@app.command(help="A process that queries tables with TableClient.")
def reader(context: typer.Context, principal: Principal = None) -> None:
    _show(context, reader_grants(globals_of(context).settings()), principal)


@app.command(help="A process that replays, verifies and lands: it reads sources, changelogs and skips.")
def replayer(context: typer.Context, principal: Principal = None) -> None:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    _show(context, replayer_grants(application.settings, application.processors), principal)


@app.command("claim-client", help="A member of a claim group.")
def claim_client(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="The group.")],
    topic: Topics,
    balanced: Annotated[bool, typer.Option("--balanced", help="The group is balanced.")] = False,
    principal: Principal = None,
) -> None:
    _show(
        context,
        claim_client_grants(globals_of(context).settings(), topic, group, balanced=balanced),
        principal,
    )


@app.command(
    help=(
        "An administrator: creates and checks the application's topics and, with --group, pauses and resets"
        " groups."
    )
)
def administrator(
    context: typer.Context,
    group: Annotated[
        list[str] | None, typer.Option("--group", help="A group to administer; may be repeated.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="A topic that these groups consume; may be repeated.")
    ] = None,
    principal: Principal = None,
) -> None:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    _show(
        context,
        administrator_grants(
            application.settings, application.processors, dict.fromkeys(group or (), topic or ())
        ),
        principal,
    )


@app.command(help="A person or job that runs `holdfast reset`.")
def resetter(context: typer.Context, principal: Principal = None) -> None:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    _show(context, resetter_grants(application.settings, application.processors), principal)


@app.command(help="A harvester of the outbox named by the settings outbox_...")
def harvester(context: typer.Context, topic: Topics, principal: Principal = None) -> None:
    from holdfast.outbox.grants import harvester_grants
    from holdfast.outbox.settings import harvest_settings

    settings = harvest_settings(
        globals_of(context).settings(), database=globals_of(context).settings().outbox_database or "sqlite://"
    )
    _show(context, harvester_grants(settings, topic), principal)
