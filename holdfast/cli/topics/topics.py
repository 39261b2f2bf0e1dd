"""`holdfast topics`: list, create, check and describe the topics of an application."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.cures import with_application
from holdfast.cli.options.application import Application, load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import OutputRow, note, show
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import check_topics, create_topics, kept_counts, orphans, plan_topics
from holdfast.clients.topics.checks import check_processors
from holdfast.clients.topics.specs import specs_for, topic_names
from holdfast.clients.topics.types import (
    PURPOSES,
    ClusterTopics,
    CreateTopic,
    RegisterSchema,
    Severity,
    TopicChange,
    TopicFinding,
    TopicRole,
)
from holdfast.errors import TopicError

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)

LIMIT_ORPHANS = 5
CONNECT_TIMEOUT_S = 5.0
"""The time for finding a broker: a person waits, and most often the address is wrong or the broker is not up.
"""


def _open(context: typer.Context) -> tuple[Application, Admin]:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    return application, Admin(application.settings, connect_timeout_s=CONNECT_TIMEOUT_S)


@app.command(
    "list",
    help="List the application's topics, including missing ones; --all lists every topic of the cluster.",
)
def list_topics(
    context: typer.Context,
    every: Annotated[
        bool, typer.Option("--all", help="Every topic of the cluster, not only the application's.")
    ] = False,
) -> None:
    application, admin = _open(context)
    names = topic_names(application.settings, application.processors)
    cluster = admin.cluster(None if every else names)
    roles = {
        spec.name: spec.role.value
        for spec in specs_for(application.settings, application.processors, cluster)
    }
    records = [_listed(name, roles.get(name), cluster) for name in sorted({*names, *cluster.topics})]
    show(records, ("topic", "role", "partition_count", "replication_factor", "configs"), output_of(context))


def _listed(name: str, role: str | None, cluster: ClusterTopics) -> OutputRow:
    state = cluster.topics.get(name)
    return {
        "topic": name,
        "role": "internal" if state and state.internal else role,
        "exists": state is not None,
        "partition_count": len(state.partitions) if state else None,
        "replication_factor": state.replication_factor if state else None,
        "configs": dict(state.overrides) if state else None,
    }


@app.command(
    help=(
        "Create the application's missing topics, with the right partitions, compaction, timestamps and"
        " replicas, and register the schemas that folds write with."
    )
)
def create(
    context: typer.Context,
    partitions: Annotated[
        int | None,
        typer.Option(min=1, max=10_000, help="Partitions of source and emit topics that do not exist yet."),
    ] = None,
    alter: Annotated[
        bool,
        typer.Option(
            "--alter", help="Also correct the configuration of existing topics where that loses no record."
        ),
    ] = False,
    claims: Annotated[
        bool,
        typer.Option(
            "--claims", help="Also create the coordination topic, for services that claim partitions."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")] = False,
) -> None:
    application, admin = _open(context)
    settings, processors = application.settings, application.processors
    wrong = check_processors(settings, processors)
    if wrong:
        raise TopicError(
            "; ".join(f"topic {finding.topic}: {finding.message}: {finding.remedy}" for finding in wrong)
        )
    others = {} if partitions is None else kept_counts(settings, processors, partitions, admin=admin)
    carry_out = plan_topics if dry_run else create_topics
    actions = carry_out(settings, processors, partitions=partitions, alter=alter, claims=claims, admin=admin)
    show(
        [*map(_done, actions), *(_kept(name, count) for name, count in others.items())],
        ("action", "topic", "role", "partition_count", "replication_factor", "purpose", "configs"),
        output_of(context),
    )
    if not actions:
        unused = f"; --partitions {partitions} is for topics that do not" if partitions else ""
        note(f"nothing to do: every topic exists{unused}")
    elif others:
        kept = ", ".join(f"{name} has {count}" for name, count in others.items())
        note(f"topics that exist keep their partitions: {kept}, not {partitions}")
    elif not claims and not application.is_built_in and not _has_coordination(application, admin):
        note(
            f"services that claim partitions (ClaimConsumer) also need {settings.coordination_topic}:"
            " add --claims"
        )
    if any(isinstance(each, CreateTopic) and each.spec.role is TopicRole.CHANGELOG for each in actions):
        _note_orphans(application, admin)
    if not dry_run:
        _insist(check_topics(settings, processors, admin=admin), globals_of(context).application)
    if others and not any(isinstance(each, CreateTopic) for each in actions):
        raise typer.Exit(1)


def _note_orphans(application: Application, admin: Admin) -> None:
    """Name the changelogs without a table, where a table begins: it may be one of them, renamed."""
    left = orphans(application.settings, application.processors, admin=admin)
    for name in left[:LIMIT_ORPHANS]:
        note(
            f"topic {name} is the changelog of no table declared here: if its table was renamed, the new one"
            f" begins with nothing; give it its old name, or delete the topic"
        )
    if len(left) > LIMIT_ORPHANS:
        note(f"and {len(left) - LIMIT_ORPHANS} more such topics")


def _has_coordination(application: Application, admin: Admin) -> bool:
    name = application.settings.coordination_topic
    return name in application.read_topics or name in admin.partition_counts()


def _kept(name: str, count: int) -> OutputRow:
    return {
        "action": "keep",
        "topic": name,
        "role": None,
        "partition_count": count,
        "replication_factor": None,
        "purpose": "it exists, and keeps its partitions",
        "configs": {},
    }


def _done(action: TopicChange) -> OutputRow:
    if isinstance(action, CreateTopic):
        return {
            "action": "create",
            "topic": action.spec.name,
            "role": action.spec.role.value,
            "partition_count": action.partitions,
            "replication_factor": action.spec.replication_factor,
            "purpose": PURPOSES[action.spec.role],
            "configs": dict(action.spec.config),
        }
    if isinstance(action, RegisterSchema):
        return {
            "action": "register",
            "topic": action.topic,
            "role": "schema",
            "partition_count": None,
            "replication_factor": None,
            "purpose": "the schema that a fold writes with",
            "configs": {"subject": action.subject, "type": action.kind},
        }
    return {
        "action": "alter",
        "topic": action.topic,
        "role": None,
        "partition_count": None,
        "replication_factor": None,
        "purpose": None,
        "configs": dict(action.config),
    }


def _insist(findings: list[TopicFinding], named: str | None) -> None:
    """Print the remaining faults, and fail when state on these topics would be wrong."""
    for finding in findings:
        remedy = with_application(finding.remedy, named)
        note(f"{finding.severity}: topic {finding.topic} {finding.message}; {remedy}")
    errors = sum(finding.severity is Severity.ERROR for finding in findings)
    if errors:
        raise TopicError(
            f"{errors} error(s) remain on existing topics, which `holdfast topics create` does not touch: see"
            " above"
        )


@app.command("check", help="Check the application's topics; exit code 1 when state on them would be wrong.")
def check_command(
    context: typer.Context,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
) -> None:
    application, admin = _open(context)
    findings = check_topics(application.settings, application.processors, beside=True, admin=admin)
    records: list[OutputRow] = [
        {
            "severity": finding.severity.value,
            "topic": finding.topic,
            "message": finding.message,
            "remedy": with_application(finding.remedy, globals_of(context).application),
        }
        for finding in findings
    ]
    show(records, ("severity", "topic", "message", "remedy"), output_of(context))
    if not findings:
        note("every topic is as it should be")
    if any(strict or finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


@app.command(
    help=(
        "Describe partitions: leader, replicas, in-sync replicas, first and next offset. Without names, those"
        " of the application."
    )
)
def describe(
    context: typer.Context,
    topics: Annotated[
        list[str] | None, typer.Argument(help="Topics to describe.", metavar="[TOPIC]...")
    ] = None,
) -> None:
    application, admin = _open(context)
    cluster = admin.cluster(topics or topic_names(application.settings, application.processors))
    missing = [name for name in topics or () if name not in cluster.topics]
    if missing:
        raise TopicError(f"topic {missing[0]} does not exist; `holdfast topics list --all` shows what does")
    found = [(state.name, partition) for state in cluster.topics.values() for partition in state.partitions]
    offsets = admin.offsets(
        (name, partition.partition) for name, partition in found if partition.leader is not None
    )
    records: list[OutputRow] = []
    for name, partition in found:
        begin, end = offsets.get((name, partition.partition), (None, None))
        records.append(
            {
                "topic": name,
                "partition": partition.partition,
                "leader": partition.leader,
                "replicas": partition.replicas,
                "isr": partition.in_sync,
                "log_start_offset": begin,
                "log_end_offset": end,
            }
        )
    show(
        records,
        ("topic", "partition", "leader", "replicas", "isr", "log_start_offset", "log_end_offset"),
        output_of(context),
    )
