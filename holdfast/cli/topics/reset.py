"""`holdfast reset`: takes an application back to its beginning, as Kafka Streams' application reset tool
does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.options.executing import ExecuteOrYes
from holdfast.cli.output import Cell, Output, note, show
from holdfast.core.claims.resets import parse_datetime_ms
from holdfast.errors import ConfigError, GroupError

if TYPE_CHECKING:
    from holdfast.cli.topics.resetting import ApplicationReset

app = typer.Typer(rich_markup_mode=None, add_completion=False)

COLUMNS = ("action", "kind", "name")


class Outputs(StrEnum):
    """The treatment of emitted records."""

    KEEP = "keep"
    EMPTY = "empty"


@app.command(
    help=(
        "Show what would take the application back to its beginning: state, positions, recorded choices and"
        " internal topics go, sources stay. With --execute, do it. Stop all workers first. To continue an"
        " interrupted reset, run it again."
    )
)
def reset(
    context: typer.Context,
    execute: ExecuteOrYes = False,
    outputs: Annotated[
        Outputs | None,
        typer.Option(
            "--outputs",
            help=(
                "Earlier emits to topics that are not internal, which the folds emit again: keep them, so"
                " that readers get them twice, or empty these topics."
            ),
        ),
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime",
            help="Fold only records of this time or later; UTC unless it names its zone.",
        ),
    ] = None,
) -> None:
    from holdfast.cli.topics.resetting import ApplicationReset

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    has_agents = bool(application.faust.read)
    found = ApplicationReset(
        application.settings,
        application.processors,
        empty_outputs=outputs is Outputs.EMPTY,
        has_agents=has_agents,
        to_ms=None if to_datetime is None else parse_datetime_ms(to_datetime),
    )
    topics = found.topics
    if topics.outputs and execute:
        _check_outputs(topics.outputs, topics.folded_outputs, outputs)
    found.check()
    _check_workers(found, execute=execute)
    records: list[dict[str, Cell]] = []
    for step in found.steps():
        if execute:
            step.do()
        records.append({"action": step.action, "kind": step.kind, "name": step.name})
    kept = () if outputs is Outputs.EMPTY else topics.outputs
    records += [{"action": "leave", "kind": "output", "name": name} for name in kept]
    records += [{"action": "leave", "kind": str(role), "name": name} for name, role in topics.left]
    if has_agents:
        records.append({"action": "leave", "kind": "group", "name": application.settings.app})
    show(records, COLUMNS, output_of(context))
    if output_of(context) is Output.TABLE:
        _tell(application.settings.app, topics.outputs, done=execute, to=to_datetime)
        if topics.bases:
            note(
                "the rows that tables began with, taken over from an earlier version or from Faust, go with"
                f" {', '.join(topics.bases)}: records that the sources no longer have are in no table then"
            )
        if has_agents:
            note("agents go on at their committed offsets, for Faust's tables and repartition topics stay")


def _check_workers(found: ApplicationReset, *, execute: bool) -> None:
    """Raise GroupError while workers run; a preview only says so."""
    try:
        found.require_stopped()
    except GroupError as error:
        if execute:
            raise
        note(str(error))


def _check_outputs(topics: tuple[str, ...], folded: tuple[str, ...], outputs: Outputs | None) -> None:
    """Raise ConfigError until it is said what becomes of the topics that folds emit to."""
    if outputs is None:
        raise ConfigError(
            f"{', '.join(topics)}: the folds emit all of it again; say --outputs keep if readers may get it"
            " twice, or --outputs empty to delete what is there"
        )
    if folded and outputs is Outputs.KEEP:
        raise ConfigError(
            f"{', '.join(folded)}: a processor of this application folds it too, and would take in twice what"
            " is emitted again: say --outputs empty"
        )


def _tell(name: str, outputs: tuple[str, ...], *, done: bool, to: str | None) -> None:
    if not done:
        note("nothing was done; stop all workers and give --execute to do it")
        if outputs:
            note(f"also say what becomes of {', '.join(outputs)}: --outputs keep, or --outputs empty")
        return
    place = "at its beginning" if to is None else f"where its sources were at {to}"
    note(f"{name} is {place}; the next worker folds its sources from there, and emits again")
    note(
        "stores on other machines are set aside when their workers start: they belong to changelogs that are"
        " gone"
    )
