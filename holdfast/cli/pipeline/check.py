"""`holdfast pipeline check`: compares the tables of a lake with the landed data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.lake.lakes import absolute, folders_in, names_of
from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.output import Output, note, number_of, show, show_json

if TYPE_CHECKING:
    from holdfast.pipeline.checks.check import LakeVerdict

COLUMNS = ("kind", "topic", "partition", "first", "last", "version", "fault")


def check(
    context: typer.Context,
    lake: Annotated[str, typer.Option(help="Folder or address of the lake.")],
    topics: Annotated[
        str | None,
        typer.Option(
            "--topics",
            "--topic",
            help=(
                "Topics whose tables to check, with commas between them. Default: all, of a lake on this"
                " machine."
            ),
        ),
    ] = None,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Read all rows, and compare their digests with those that were landed."),
    ] = False,
    against_topic: Annotated[
        bool,
        typer.Option("--against-topic", help="Compare with what the topic still holds, record by record."),
    ] = False,
) -> None:
    from holdfast.pipeline.bronze.landed_notes import LandedNotes, is_reached
    from holdfast.pipeline.checks.check import check_table

    settings, output, where = settings_of(context), output_of(context), absolute(lake)
    names = names_of(topics) if topics is not None else folders_in(where)
    notes = LandedNotes(settings) if is_reached(settings) else None
    if notes is None and not against_topic:
        note(
            f"{settings.bootstrap_servers} takes no connections: how far landings had come, which is noted"
            " in Kafka, is not compared"
        )
    verdicts = list["LakeVerdict"]()
    for each in names:
        asks = against_topic and all(verdict.compared is not False for verdict in verdicts)
        noted = notes if asks is against_topic else None
        verdicts.append(check_table(settings, each, where, deep=deep, against_topic=asks, notes=noted))
        if asks is not against_topic:
            note(f"{each}: not compared with its topic, since the brokers did not answer")
    _show(verdicts, output)
    if not all(each.sound for each in verdicts):
        raise typer.Exit(1)


def _show(verdicts: list[LakeVerdict], output: Output) -> None:
    if output is Output.JSON:
        show_json([each.document() for each in verdicts])
        return
    faults = [
        {
            "kind": fault.kind,
            "topic": verdict.topic,
            "partition": fault.partition,
            "first": fault.first,
            "last": fault.last,
            "version": fault.version,
            "fault": fault.told,
        }
        for verdict in verdicts
        for fault in verdict.faults
    ]
    if faults:
        show(faults, COLUMNS, output)
    for each in verdicts:
        found = "sound" if each.sound else f"{len(each.faults)} FAULTS"
        rows, files = number_of(each.rows, "row"), number_of(each.files, "file")
        note(f"{each.topic}: {found}; {rows} in {files} of {number_of(each.commits, 'landing')}")
        if each.deep and each.undigested:
            told = ", ".join(f"{p}:{at}" for p, at in each.undigested.items())
            note(f"{each.topic}: rows before these offsets have no digests, and were counted alone: {told}")
