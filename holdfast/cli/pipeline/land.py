"""`holdfast pipeline land`: topics, or the sources of a processor, as tables of a lake."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from holdfast.cli.asked import stopped_by_signals
from holdfast.cli.lake.engines import ConfOption, EngineName, MasterOption, MemoryOption, spark_options
from holdfast.cli.lake.lakes import absolute, names_of
from holdfast.cli.options.application import Application, load_application
from holdfast.cli.options.context import globals_of, output_of, settings_of
from holdfast.cli.options.metrics_port import MetricsPortOption, metrics_on
from holdfast.cli.output import Cell, Output, note, number_of, show
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from threading import Event

    from prometheus_client import CollectorRegistry

    from holdfast.config import Settings
    from holdfast.pipeline.bronze.lake import Landed
    from holdfast.pipeline.landing.options import LandEngine, LandOptions, LandReport
    from holdfast.pipeline.spark.session import SparkOptions

LakeOption = Annotated[
    str, typer.Option(help="Folder or address of the lake; the table is LAKE/bronze/TOPIC.")
]
TopicsOption = Annotated[
    str | None,
    typer.Option(
        "--topics",
        "--topic",
        help=(
            "Topics to land, with commas between them; patterns such as 'events.*' take up new topics when"
            " following."
        ),
    ),
]
ProcessorOption = Annotated[
    str | None,
    typer.Option(
        help=(
            "In place of --topics: the sources of this processor and, if there are several, the choices of"
            " their order."
        )
    ),
]
OnceOption = Annotated[
    bool, typer.Option("--once", help="Land what is committed now, then end (the default).")
]
FollowOption = Annotated[bool, typer.Option("--follow", help="Run until SIGTERM or Ctrl-C.")]
EveryOption = Annotated[
    float,
    typer.Option("--every", min=0, help="Shortest time between two commits when following, in seconds."),
]
EveryBytesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="When following, commit before --every is over if about so many bytes (as stored) wait.",
    ),
]
MaxRecordsOption = Annotated[int, typer.Option(min=1, help="Largest commit, in records.")]
AcceptLossOption = Annotated[
    bool,
    typer.Option("--accept-loss", help="Continue although records were deleted before they were landed."),
]
RebuildOption = Annotated[
    bool,
    typer.Option("--rebuild", help="Read the table's offsets from its rows, if its history lacks them."),
]
GroupOption = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        help=(
            "Keep what this consumer group has not committed of topics with retention landed; may be"
            " repeated."
        ),
    ),
]
EngineOption = Annotated[
    EngineName,
    typer.Option(
        help=(
            "local: this process, no JVM. spark: tasks of Spark. auto: local where the lake is on this"
            " machine or in S3, and no option of Spark is given."
        )
    ),
]


def land(
    context: typer.Context,
    lake: LakeOption,
    topics: TopicsOption = None,
    processor: ProcessorOption = None,
    once: OnceOption = False,
    follow: FollowOption = False,
    every_s: EveryOption = 2.0,
    every_bytes: EveryBytesOption = None,
    metrics_port: MetricsPortOption = None,
    max_records: MaxRecordsOption = 500_000,
    accept_loss: AcceptLossOption = False,
    rebuild: RebuildOption = False,
    group: GroupOption = None,
    engine: EngineOption = EngineName.AUTO,
    master: MasterOption = None,
    memory: MemoryOption = None,
    conf: ConfOption = None,
) -> None:
    from holdfast.pipeline.landing.options import LandOptions, chosen_engine

    if once and follow:
        raise ConfigError("--once and --follow exclude each other")
    if metrics_port is not None and topics is None:
        raise ConfigError(
            "--metrics-port without --topics: only landings of topics have metrics; add --topics"
        )
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

    where, spark = absolute(lake), spark_options(settings, master, memory, conf)
    note("landing with {}: {}".format(*chosen_engine(options.engine, where, spark)))
    asked = globals_of(context).application
    application = None if asked is None and processor is None else load_application(asked, settings)
    job = _Landing(where, options, spark, application, group or ())
    with metrics_on(metrics_port) as metrics, stopped_by_signals() as stop:
        if topics is not None and processor is None:
            reports = job.of_topics(settings, names_of(topics), metrics, stop)
        elif application is not None and processor is not None and topics is None:
            reports = job.of_processor(application, processor, stop)
        else:
            raise ConfigError("say what to land: --topics TOPIC,... or --processor NAME")
    _show(reports, output)


class _Landing(NamedTuple):
    """The topics to land and their lake, whichever way they are named."""

    lake: str
    options: LandOptions
    spark: SparkOptions
    application: Application | None
    groups: Sequence[str]

    def of_topics(
        self, settings: Settings, topics: Sequence[str], metrics: CollectorRegistry, stop: Event
    ) -> Sequence[LandReport]:
        from holdfast.cli.pipeline.landing_status import LandingPage, landing_line
        from holdfast.pipeline.landing.land_topics import TopicsLanding

        landing = TopicsLanding(
            settings, topics, self.lake, options=self.options, spark=self.spark, progress=_log
        )
        metrics.register(LandingPage(landing.reports))
        with (
            landing_line(landing.reports),
            _trimmed(self.application, self.lake, self.groups, landing.reports, self.options),
        ):
            return landing.run(stop)

    def of_processor(self, application: Application, processor: str, stop: Event) -> Sequence[LandReport]:
        from holdfast.pipeline.landing.land_several import land_processor

        folded = application.processor(processor)
        with _trimmed(application, self.lake, self.groups, folded.topics, self.options):
            return land_processor(
                application.settings,
                folded,
                self.lake,
                options=self.options,
                spark=self.spark,
                stop=stop,
                progress=_log,
            )


def _log(landed: Landed) -> None:
    from holdfast.pipeline.bronze.lake import describe

    if not sys.stderr.isatty():  # a terminal has a status line for that
        note(f"landed {landed.topic} up to {describe(landed.end)}")


@contextmanager
def _trimmed(
    application: Application | None,
    lake: str,
    groups: Sequence[str],
    topics: Collection[str],
    options: LandOptions,
) -> Iterator[None]:
    """Delete the landed records of those of *topics* that are declared with retention landed: during the
    block when it follows, else afterwards.
    """
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
