"""`holdfast audit`: whether each row was published once, in order."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.lake.engines import EngineName, EngineOption, takes_spark
from holdfast.cli.lake.lakes import absolute
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.lake.sources import LakeOption
from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.output import Output, note, number_of, show, show_json
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.audit import AuditReport
    from holdfast.pipeline.spark.session import SparkOptions

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


class AuditSource(StrEnum):
    """The choices of `--from`."""

    TOPIC = "topic"
    BRONZE = "bronze"


PARTITION_FIELDS = (
    "topic",
    "partition",
    "first_offset",
    "records",
    "audited",
    "producers",
    "repeated",
    "undigested",
    "ends",
    "findings",
)
FINDING_FIELDS = (
    "kind",
    "topic",
    "partition",
    "offset",
    "after",
    "producer",
    "epoch",
    "first",
    "last",
    "key",
    "reason",
)


@app.callback()
def audit() -> None: ...  # `holdfast audit` is a noun, though it has one verb as yet


OutboxOption = Annotated[
    str | None,
    typer.Option(
        "--outbox",
        help=(
            "The outbox. Without it, every producer in the topics is audited, but the last numbers are not"
            " compared."
        ),
    ),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        metavar="TOPIC",
        help="A topic to audit; may be repeated. Default: every topic that the outbox has published to.",
    ),
]
NumberOption = Annotated[
    str | None,
    typer.Option(
        metavar="HEADER",
        help="A header with the service's own number of each row of a key. With it, rows are proved too.",
    ),
]
AtLeastOnceOption = Annotated[
    bool,
    typer.Option(
        "--at-least-once",
        help="Count repetitions of a row, but do not report them (strategy mark); needs --number.",
    ),
]
EndsOption = Annotated[
    bool | None,
    typer.Option(
        "--ends/--no-ends",
        help="Compare the last numbers with the leaders' progress; for bronze only if given.",
    ),
]
ByKeyOption = Annotated[
    bool,
    typer.Option(
        "--by-key",
        help=(
            "Check that records without a digest are in their key's partition (murmur2 over the topic's"
            " current partitions)."
        ),
    ),
]
SourceOption = Annotated[
    AuditSource,
    typer.Option("--from", help="Read the topics, or the bronze tables that `pipeline land` keeps."),
]


@app.command(
    help=(
        "Audit the topics of an outbox, or their bronze tables. Each row must be there once and unchanged, in"
        " its key's order and partition; numbers must have no gap, epochs no zombie. Exit code 1 on any"
        " finding."
    )
)
@takes_spark()
def outbox(
    context: typer.Context,
    spark: SparkOptions,
    name: OutboxOption = None,
    topics: TopicsOption = None,
    number: NumberOption = None,
    at_least_once: AtLeastOnceOption = False,
    ends: EndsOption = None,
    by_key: ByKeyOption = False,
    engine: EngineOption = EngineName.AUTO,
    source: SourceOption = AuditSource.TOPIC,
    lake: LakeOption = None,
) -> None:
    from holdfast.core.producers.audit import Rules
    from holdfast.pipeline.audit import AuditOptions
    from holdfast.pipeline.audit import audit as run

    if at_least_once and number is None:
        raise ConfigError(
            "--at-least-once needs --number HEADER: without numbers, repeated rows cannot be recognized"
        )
    options = AuditOptions(
        topics=tuple(topics or ()),
        rules=Rules(outbox=name, number=number, at_least_once=at_least_once),
        engine=engine.value,
        source=source.value,
        lake=None if lake is None else absolute(lake),
        ends=ends,
        by_key=by_key,
        spark=spark,
    )
    with shown_progress():
        report = run(settings_of(context), options)
    _show(report, output_of(context))
    if not report.is_clean:
        raise typer.Exit(1)


def _show(report: AuditReport, output: Output) -> None:
    document = report.document()
    if output is Output.JSON:
        show_json(document)
    else:
        show(document["partitions"], PARTITION_FIELDS, Output.TABLE)
        if document["findings"]:
            print()
            show(document["findings"], FINDING_FIELDS, Output.TABLE)
    for each in report.notes:
        note(each)
    if undigested := sum(each.undigested for each in report.partitions):
        note(
            f"{undigested} records bear no digest, as an older version published them: that they are"
            " unchanged is not proved"
        )
    verdict = "nothing is wrong" if report.is_clean else "NOT as it must be"
    note(f"{number_of(report.audited, 'record')} audited on {report.engine}: {verdict}")
