"""`holdfast pipeline`: jobs on Spark that keep a topic's history."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, cast

import typer

from holdfast.cli.application import Application, load_application
from holdfast.cli.asked import stopped_by_signals
from holdfast.cli.context import globals_of, output_of, settings_of
from holdfast.cli.lake.engines import ConfOption, EngineName, MasterOption, MemoryOption, spark_options
from holdfast.cli.lake.lakes import absolute, names_of
from holdfast.cli.output import Cell, Output, note, number_of, show
from holdfast.cli.pipeline.check import check
from holdfast.cli.pipeline.derive import derive
from holdfast.cli.pipeline.fold import fold
from holdfast.cli.pipeline.trim import trim
from holdfast.cli.pipeline.upkeep import compact, expire, vacuum
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.landing.options import LandEngine, LandOptions, LandReport

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)

app.command(
    help="Check the tables of a lake: counts, overlaps, gaps, files and commits by strangers. Exit code 1 for any fault."
)(check)
app.command(
    help="Fold the newly landed records of a processor's source into two tables: the state, and the history of each row. "
    "After any number of runs they equal a replay from the beginning."
)(fold)
app.command(
    help="Update the tables of claims, consumer groups and their lag, outboxes, producers' anomalies and the quarantine with the newly landed records."
)(derive)
app.command(
    help="Join small files of a lake's tables, in the order of offsets. No row changes, and landings continue."
)(compact)
app.command(
    help="Remove the records of a lake's tables that are older than a time, for good. Checks, replays and landings take it into account, and continue."
)(expire)
app.command(
    help="Remove files of a lake's tables that no version needs any more, and those of killed landings."
)(vacuum)
app.command(
    help="Show which records may be deleted from the application's sources: those that the lake holds, compared one by "
    "one, and that all tables have folded. With --yes, delete them."
)(trim)


@app.command(
    help="Land topics in a lake, or every topic that a processor folds. Each committed record becomes one row of a Delta table, "
    "exactly once, also after a crash. With -A, landed records are deleted from topics that the application declares with retention landed."
)
def land(
    context: typer.Context,
    lake: Annotated[str, typer.Option(help="Folder or address of the lake; the table is LAKE/bronze/TOPIC.")],
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics",
            "--topic",
            help="Topics to land, with commas between them; patterns such as 'events.*' take up new topics when following.",
        ),
    ] = None,
    processor: Annotated[
        str | None,
        typer.Option(
            help="In place of --topics: the sources of this processor and, if there are several, the choices of their order."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Land what is committed now, then end (the default).")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Run until SIGTERM or Ctrl-C.")] = False,
    every_s: Annotated[
        float,
        typer.Option("--every", min=0, help="Shortest time between two commits when following, in seconds."),
    ] = 2.0,
    every_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="When following, commit before --every is over if about so many bytes (as stored) wait.",
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Serve metrics for Prometheus on this port of loopback."),
    ] = None,
    max_records: Annotated[int, typer.Option(min=1, help="Largest commit, in records.")] = 500_000,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Continue although records were deleted before they were landed."),
    ] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Read the table's offsets from its rows, if its history lacks them."),
    ] = False,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            help="Keep what this consumer group has not committed of topics with retention landed; may be repeated.",
        ),
    ] = None,
    engine: Annotated[
        EngineName,
        typer.Option(
            help="local: this process, no JVM. spark: tasks of Spark. auto: local where the lake is on this machine or in S3, and no "
            "option of Spark is given."
        ),
    ] = EngineName.AUTO,
    master: MasterOption = None,
    memory: MemoryOption = None,
    conf: ConfOption = None,
) -> None:
    from holdfast.cli.pipeline.landing_status import landing_line, serve
    from holdfast.pipeline.bronze.lake import Landed, describe
    from holdfast.pipeline.landing.land_several import land_processor
    from holdfast.pipeline.landing.land_topics import TopicsLanding
    from holdfast.pipeline.landing.options import LandOptions, chosen_engine

    if once and follow:
        raise ConfigError("--once and --follow exclude each other")
    settings, output = settings_of(context), output_of(context)
    options = LandOptions(
        engine=asked_engine(engine, master, memory, conf),
        follow=follow,
        max_records=max_records,
        every_s=every_s,
        every_bytes=every_bytes,
        accept_loss=accept_loss,
        rebuild=rebuild,
    )

    def log(landed: Landed) -> None:
        if not sys.stderr.isatty():  # a terminal has a line that tells
            note(f"landed {landed.topic} up to {describe(landed.end)}")

    where, spark = absolute(lake), spark_options(settings, master, memory, conf)
    note("landing with {}: {}".format(*chosen_engine(options.engine, where, spark)))
    asked = globals_of(context).application
    application = None if asked is None and processor is None else load_application(asked, settings)
    with stopped_by_signals() as stop:
        if topics is not None and processor is None:
            landing = TopicsLanding(
                settings, names_of(topics), where, options=options, spark=spark, progress=log
            )
            if metrics_port is not None:
                serve(landing.reports, metrics_port)
            with (
                landing_line(landing.reports),
                _trimmed(application, where, group or (), landing.reports, options),
            ):
                reports = landing.run(stop)
        elif application is not None and processor is not None and topics is None:
            folded = application.processor(processor)
            with _trimmed(application, where, group or (), folded.topics, options):
                reports = land_processor(
                    application.settings, folded, where, options=options, spark=spark, stop=stop, progress=log
                )
        else:
            raise ConfigError("say what to land: --topics TOPIC,... or --processor NAME")
    _show(reports, output)


@contextmanager
def _trimmed(
    application: Application | None,
    lake: str,
    groups: Sequence[str],
    topics: Collection[str],
    options: LandOptions,
) -> Iterator[None]:
    """Delete what the block lands of those of *topics* that are declared with retention landed: meanwhile when it follows, else afterwards."""
    from holdfast.pipeline.landed_trimming import LandedTopics, trim_told

    if application is None:
        yield
        return
    trims = LandedTopics(
        application.settings,
        application.processors,
        lake,
        groups=groups,
        agents_read=application.faust.read,
    )
    if options.follow and trims.declared:
        with trims.trimmed(lambda: [*topics], note):
            yield
        return
    yield
    for each in trims.trim(topics):
        note(trim_told(each))


def asked_engine(
    engine: EngineName, master: str | None, memory: str | None, conf: list[str] | None
) -> LandEngine:
    """Return the engine that the options ask for: who configures Spark wants Spark.

    >>> asked_engine(EngineName.AUTO, "local[2]", None, None), asked_engine(EngineName.AUTO, None, None, None)
    ('spark', 'auto')
    """
    named = engine.value if engine is not EngineName.AUTO or not (master or memory or conf) else "spark"
    return cast("LandEngine", named)


def _show(reports: Sequence[LandReport], output: Output) -> None:
    rows: list[dict[str, Cell]] = [
        {
            "topic": report.topic,
            "partition": partition,
            "end_offset": end,
            "lost": [f"{a}-{b - 1}" for a, b in report.lost.get(partition, [])],
        }
        for report in reports
        for partition, end in sorted(report.vector.items())
    ]
    show(rows, ("topic", "partition", "end_offset", "lost"), output)
    for report in reports:
        note(f"{number_of(report.commits, 'commit')} to {report.path}")
